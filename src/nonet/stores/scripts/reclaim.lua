#!lua flags=allow-oom
-- reclaim: requeue the tasks of dead workers, report their deaths, and forget workers that are gone. A delivery is taken when its
-- pending entry was not renewed for one lease. Redis measures that idle time by its own clock, so nothing is taken
-- for one lease after that clock was set.
-- KEYS  prefix
-- ARGV  keeping, worker, size, lease ms, entries to check per stream, crash limit, µs that it cannot be later than
--       or '', a cursor for each stream of lib/streams
-- returns {number reclaimed, now µs, the cursors for the next call}: one call sees only a part
-- @include base leading wake streams record counting submitting rescue index group keeping finish ending workflow lost pending forget events naming deliveries deaths
local worker, size, lease = ARGV[2], ARGV[3], tonumber(ARGV[4])
local count, limit, latest, FIRST_CURSOR = ARGV[5], tonumber(ARGV[6]), ARGV[7], 8
local answer, reclaimed, PAGE = {0, digits(now)}, 0, 500
if is_clock_ahead(latest) then
  return {0, digits(now), unpack(ARGV, FIRST_CURSOR)}
end

local function take(id, gen)
  return take_back(id, gen, limit)
end

-- A worker that died before its first beat after a loss of data is registered nowhere. Register it as one whose
-- registration ends now, so that it is forgotten.
local function register(names)
  local members = {}
  for _, name in ipairs(names) do
    members[#members + 1] = digits(now)
    members[#members + 1] = name
  end
  if #members > 0 then
    redis.call('ZADD', P .. 'workers', 'NX', unpack(members))
  end
end

local function consumers_of(key)
  local found, names = redis.pcall('XINFO', 'CONSUMERS', key, 'workers'), {}
  for _, consumer in ipairs(found.err and {} or found) do
    names[#names + 1] = consumer[2] ~= worker and consumer[2] or nil
  end
  return names
end

local RARELY_READ = {suspects = true, burials = true}

local function sweep(stream, cursor)
  local key = stream.key
  local reply = redis.pcall('XAUTOCLAIM', key, 'workers', worker, lease, cursor, 'COUNT', count,
    'JUSTID')
  if type(reply) ~= 'table' or reply.err then
    -- Its consumer group was deleted: the entries are unread again.
    if RARELY_READ[stream.kind] and redis.call('TYPE', key).ok == 'stream' then
      redis.call('SET', P .. 'suspected:' .. size, 1)
    end
    return '0-0'
  end
  register(consumers_of(key))
  for _, entry in ipairs(reply[2]) do
    reclaimed = reclaimed + (see_to(key, entry, take) and 1 or 0)
  end
  return reply[1]
end

-- When the server's clock was set (logical µs), whether back, and whether during the last lease.
local function last_step()
  local at, by = unpack(redis.call('HMGET', P .. 'clock:stepped', 'at', 'by'))
  if not at or tonumber(at) > now then
    return nil, false
  end
  return at, tonumber(by) < 0, now - at < lease * 1000
end

-- After a step back earlier deliveries have times in the future: begin their leases anew, once. HASH
-- clock:stepped, stream: 'step|entry up to which that is done', '+' at the end.
local function begin_leases(key, step)
  local stream = string.sub(key, #P + 1)
  local done = redis.call('HGET', P .. 'clock:stepped', stream)
  local of, last = string.match(done or '', '^(%d+)|(.*)$')
  last = of == step and last or '-'
  if last == '+' then
    return
  end
  local page = pending_in(key, last, '+', PAGE)
  for _, item in ipairs(page) do
    redis.call('XCLAIM', key, 'workers', item[2], 0, item[1], 'IDLE', 0, 'JUSTID')
  end
  last = #page == PAGE and '(' .. page[PAGE][1] or '+'
  redis.call('HSET', P .. 'clock:stepped', stream, step .. '|' .. last)
end

local step, is_back, is_recent
if stepped then
  step, is_back, is_recent = last_step()
end
-- Redis was unavailable, or this worker was: let live workers renew their leases first.
local beats_until = tonumber(redis.call('ZSCORE', P .. 'workers', worker) or '')
is_recent = is_recent or beats_until and beats_until <= now
if not is_recent then
  report_deaths(shown(worker), digits(now))
end
for i, stream in ipairs(streams_of(size)) do
  if is_back then
    begin_leases(stream.key, step)
  end
  answer[#answer + 1] = is_recent and '0-0' or sweep(stream, ARGV[FIRST_CURSOR + i - 1])
end
register(redis.call('ZRANGE', P .. 'idle:' .. size, 0, 999))
forget_gone(lease)
answer[1] = reclaimed
return answer
