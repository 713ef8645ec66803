#!lua flags=allow-oom
-- expired: what the leader ends without any worker: tasks that nobody started in time, and that belong into
-- SQL. They are dying, and in no worker's hands. Others leave the set.
-- KEYS  prefix
-- ARGV  leader's term, how many to look at; less if their envelopes are long
-- returns {1 if the caller leads, else 0, n × (id, gen, generation in which it died, attempts used, envelope,
--       why)}
-- @include base wake record
local leader = redis.call('HMGET', P .. 'leader', 'term', 'expiry')
if leader[1] ~= ARGV[1] or tonumber(leader[2]) <= now then
  return {0}
end
local rows, bytes, MOST_BYTES, HARD_LIMIT = {1}, 0, 1048576, 4 * 1048576

local function look_at(id)
  local record = read_fields(P .. 't:' .. id, {'state', 'gen', 'owner', 'reason', 'died', 'attempt', 'detail',
    'b', 'name', 'v'})
  if record.state ~= 'dying' or record.reason ~= 'capacity' or newer_format(record) then
    redis.call('ZREM', P .. 'expired', id)
  elseif not record.owner then  -- else a worker is at it
    local envelope = envelope_of(id, record) or redis.call('GETRANGE', P .. 'b:' .. id, 0, HARD_LIMIT)
    bytes = bytes + #envelope
    rows[#rows + 1] = {id, record.gen or '', record.died or '', record.attempt or '0', envelope,
      record.detail or ''}
  end
end

for _, id in ipairs(redis.call('ZRANGE', P .. 'expired', 0, tonumber(ARGV[2]) - 1)) do
  if not pcall(look_at, id) then  -- of another type: nobody of us wrote it
    redis.call('ZREM', P .. 'expired', id)
  end
  if bytes > MOST_BYTES then  -- a database takes no statement of any length
    break
  end
end
return rows
