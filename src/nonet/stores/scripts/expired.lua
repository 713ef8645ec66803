#!lua flags=allow-oom
-- expired: list dying tasks that did not start in time. The leader writes their rows to SQL, then ends them. Tasks
-- that a worker has are skipped. Ids of tasks that no longer wait here are removed from the set.
-- KEYS  prefix
-- ARGV  leader's term, how many to check; fewer are returned if their envelopes are long
-- returns {1 if the caller leads, else 0, n × (id, gen, generation in which it died, attempts used, envelope,
--       why)}
-- @include base leading wake record
local term, most = ARGV[1], tonumber(ARGV[2])
if not leads(term) then
  return {0}
end
local rows, bytes, MOST_BYTES, HARD_LIMIT = {1}, 0, 1048576, 4 * 1048576

local function read_row(id)
  local record = read_record(id)
  if record.state ~= 'dying' or record.reason ~= 'capacity' or newer_format(record) then
    redis.call('ZREM', P .. 'expired', id)
  elseif not record.owner then  -- else a worker has it
    local envelope = records.envelope(id, record, HARD_LIMIT)
    bytes = bytes + #envelope
    rows[#rows + 1] = {id, record.gen or '', record.died or '', record.attempt or '0', envelope,
      record.detail or ''}
  end
end

for _, id in ipairs(redis.call('ZRANGE', P .. 'expired', 0, most - 1)) do
  read_row(id)
  if bytes > MOST_BYTES then  -- databases limit the length of a statement
    break
  end
end
return rows
