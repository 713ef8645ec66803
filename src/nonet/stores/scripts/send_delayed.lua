#!lua flags=allow-oom
-- send_delayed: give the delayed tasks of a tenant to another namespace, page by page. A task is held back first; once
-- the other namespace has it, the next call deletes it here. Safe to repeat: a task that was held back is given again.
-- Tasks of groups and workflows stay, as do those that have been attempted.
-- KEYS  prefix
-- ARGV  tenant, cursor, n ids that the other namespace has
-- returns {next cursor, {ids of those that have ended here meanwhile}, n × (id, name, stream, due µs by the wall clock,
--       envelope, locks, terms)}
-- @include base wake record counting
local tenant, PAGE, NEVER = ARGV[1], 500, 4000000000000000

local function is_movable(record)
  return record.state == 'delayed' and record.tenant == tenant and not (record.fence or record.attempt or record.group
    or record.workflow or record.opens or record.waited or record.letter or record.saved)
end

local ended = {}
for i = 3, #ARGV do
  local id, record = ARGV[i], read_record(ARGV[i])
  if redis.call('EXISTS', P .. 'r:' .. id) == 1 then
    ended[#ended + 1] = id
  elseif record.moving and is_movable(record) then
    local bytes = counted_bytes(id)
    if record.unique then
      give_key_up(id, record.unique)
    end
    redis.call('DEL', P .. 't:' .. id, P .. 'b:' .. id, P .. 'l:' .. id)
    redis.call('ZREM', P .. 'tasks:delayed', id)
    redis.call('ZREM', P .. 'deadlines', id)
    count_one(record.stream, record, -1, bytes)
  end
end

local MODES = {d = 'done', s = 'start', l = 'latest'}

local function terms_of(record)
  local terms = {'tenant|' .. tenant}
  if record.v then
    terms[#terms + 1] = 'format|' .. record.v
  end
  local mode, key = string.match(record.unique or '', '^(%l)(%x+)$')
  if mode then
    terms[#terms + 1] = 'unique|' .. MODES[mode] .. '|0|' .. key
  end
  local deadline, eligible = string.match(record.start_by or '', '^(%d+)|?(%d?)')
  if deadline then
    terms[#terms + 1] = 'start_by|' .. digits(tonumber(deadline) - offset) .. '|' .. eligible
  end
  return table.concat(terms, '\n')
end

local page = redis.call('ZSCAN', P .. 'tasks:delayed', ARGV[2], 'COUNT', PAGE)
local answer = {page[1], ended}
for i = 1, #page[2], 2 do
  local id = page[2][i]
  local record = read_record(id)
  local envelope = is_movable(record) and redis.call('GET', P .. 'b:' .. id)
  if envelope then
    redis.call('HSET', P .. 't:' .. id, 'moving', 1)
    redis.call('ZADD', P .. 'tasks:delayed', digits(NEVER), id)
    local due = digits(tonumber(record.due or page[2][i + 1]) - offset)
    for _, part in ipairs({id, record.name, record.stream, due, envelope, redis.call('GET', P .. 'l:' .. id) or '',
      terms_of(record)}) do
      answer[#answer + 1] = part
    end
  end
end
return answer
