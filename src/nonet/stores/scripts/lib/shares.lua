-- lib/shares: needs now. Fair shares: the tasks of a priority that have a tenant wait in a list of that tenant. A fetch
-- moves as many of them into the streams as it has free slots, see lib/sharing.
-- STRING fair: the streams whose new pointers go to lists, between blanks; it exists until all lists are empty
-- LIST share:KIND:PRIORITY:SIZE:TENANT: 'ID GEN'; KIND is tasks, or woken (read before tasks)
-- ZSET shares:PRIORITY:SIZE: tenant → its virtual time, of the tenants with a backlog
-- ZSET rested:PRIORITY:SIZE: the same of tenants without one, while they are ahead of the others
-- HASH pace: PRIORITY:SIZE → virtual time of the last task that was handed over; 'PRIORITY:SIZE KIND' → how many pointers
-- the lists of a kind have
-- HASH weights: tenant → weight; the others have that of 'default'

-- Let a tenant take part. One that was idle has saved up nothing; one that comes back soon has not paid off what it
-- used. Call this before its list gets a pointer: if Redis stops the script in between, the next fetch removes it.
local function join(stream, tenant)
  local shares, rested = P .. 'shares:' .. stream, P .. 'rested:' .. stream
  if not redis.call('ZSCORE', shares, tenant) then
    local pace = tonumber(redis.call('HGET', P .. 'pace', stream) or '0')
    local left = tonumber(redis.call('ZSCORE', rested, tenant) or '0')
    redis.call('ZADD', shares, string.format('%.17g', math.max(pace, left)), tenant)
    redis.call('ZREM', rested, tenant)
  end
end

-- Append pointers, 'ID GEN' each, to the list of a tenant.
local function share(kind, stream, tenant, pointers)
  join(stream, tenant)
  redis.call('HINCRBY', P .. 'pace', stream .. ' ' .. kind, #pointers)
  redis.call('RPUSH', P .. 'share:' .. kind .. ':' .. stream .. ':' .. tenant, unpack(pointers))
end
