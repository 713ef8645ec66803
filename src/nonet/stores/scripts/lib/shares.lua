-- lib/shares: needs now. Fair shares: the tasks of a priority that have a tenant wait in a list of that tenant. A fetch
-- moves as many of them into the streams as it has free slots, see lib/sharing. Those that wait for a limiter stand in a
-- line of that tenant, see lib/lines; then the name of the limiter stands for PRIORITY:SIZE.
-- STRING fair: the streams whose new pointers go to lists, between blanks; it exists until all lists are empty
-- LIST share:KIND:PRIORITY:SIZE:TENANT: 'ID GEN'; KIND is tasks, or woken (read before tasks)
-- ZSET shares:PRIORITY:SIZE: tenant → its virtual time, of the tenants with a backlog
-- ZSET rested:PRIORITY:SIZE: the same of tenants without one, while they are ahead of the others
-- HASH pace: PRIORITY:SIZE → virtual time of the last task that was handed over; 'PRIORITY:SIZE KIND' → how many pointers
-- the lists of a kind have
-- HASH weights: tenant → weight; the others have that of 'default'

local function exact(number)
  return string.format('%.17g', number)
end

local function pace_of(stream)
  return tonumber(redis.call('HGET', P .. 'pace', stream) or '0')
end

-- The virtual time of a tenant, and whether it takes part already. An idle tenant saves up nothing; a tenant that
-- returns soon still pays for what it used.
local function time_of(stream, tenant)
  local time = redis.call('ZSCORE', P .. 'shares:' .. stream, tenant)
  if time then
    return tonumber(time), true
  end
  return math.max(pace_of(stream), tonumber(redis.call('ZSCORE', P .. 'rested:' .. stream, tenant) or '0')), false
end

-- Let a tenant take part. Call this before its list gets a pointer: if Redis stops the script in between, the next fetch
-- removes it.
local function join(stream, tenant)
  local time, takes_part = time_of(stream, tenant)
  if not takes_part then
    redis.call('ZADD', P .. 'shares:' .. stream, exact(time), tenant)
    redis.call('ZREM', P .. 'rested:' .. stream, tenant)
  end
end

-- Append pointers, 'ID GEN' each, to the list of a tenant.
local function share(kind, stream, tenant, pointers)
  join(stream, tenant)
  redis.call('HINCRBY', P .. 'pace', stream .. ' ' .. kind, #pointers)
  redis.call('RPUSH', P .. 'share:' .. kind .. ':' .. stream .. ':' .. tenant, unpack(pointers))
end
