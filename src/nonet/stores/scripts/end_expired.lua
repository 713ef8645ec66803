#!lua flags=allow-oom
-- end_expired: end dying tasks once their rows are in SQL; the leader calls it. Safe to repeat. Tasks that a worker
-- has taken meanwhile are skipped.
-- KEYS  prefix
-- ARGV  keeping, n × (id, gen, document, or '' to leave it to the workers)
-- returns the ids of the tasks that it ended
-- @include base wake record counting submitting index group keeping finish ending workflow
local ended, FIRST = {}, 2

local function end_task(id, gen, document)
  local record = read_record(id)
  local is_ours = record.state == 'dying' and record.reason == 'capacity' and record.gen == gen
  if not is_ours or record.owner then
    return false
  end
  finish(id, record, 'expired', '0', document)
  drop_pointers(id, record)
  return true
end

for i = FIRST, #ARGV, 3 do
  local id, gen, document = unpack(ARGV, i, i + 2)
  if document == '' then
    redis.call('ZREM', P .. 'expired', id)
  else
    local fine, is_ended = pcall(end_task, id, gen, document)
    if fine and is_ended then
      redis.call('ZREM', P .. 'expired', id)
      ended[#ended + 1] = id
    end
  end
end
return ended
