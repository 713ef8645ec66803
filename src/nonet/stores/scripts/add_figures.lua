#!lua flags=allow-oom
-- add_figures: add what a worker has counted of classes, tenants and streams since its last call to the figures of this
-- minute, and of tenants to their totals. A repeated call, whose reply was lost, adds nothing.
-- KEYS  prefix
-- ARGV  worker, number of the call, how many classes, how many tenants, how many of these have a name in the
--       configuration, n × (class, vector), n × (tenant, vector), first those with a name in the configuration, then by
--       their tasks, n × (stream, vector)
-- returns µs by which the logical time is ahead of the server's clock
-- @include base vectors
local worker, number, ONE_HOUR, MONTH, MOST, FIRST = ARGV[1], ARGV[2], 3600000, 2592000000, 200, 6
local KEPT = 10800  -- seconds, see RESOLUTIONS in nonet/rules/figures.py
local tenants = FIRST + 2 * ARGV[3]
local streams, sure = tenants + 2 * ARGV[4], tenants + 2 * ARGV[5]

-- Add the pairs in a range of ARGV. A key has room for a limited number of names, and for all before `sure`.
local function add_all(key, ttl, from, past, sure, others)
  if from >= past then
    return
  end
  local names, asked, sums, pairs_of = redis.call('HLEN', key), {others}, {}, {}
  for i = from, past - 1, 2 do
    asked[#asked + 1] = ARGV[i]
  end
  local found = redis.call('HMGET', key, unpack(asked))
  for i = from, past - 1, 2 do
    local name, was = ARGV[i], found[(i - from) / 2 + 2]
    if not was then
      name = (names < MOST or i < sure) and name or others
      names = names + 1
    end
    local kept, sum = name == others and found[1] or was, sums[name]
    if not sum then
      sum = {}
      vectors.add(sum, kept or '')
    end
    vectors.add(sum, ARGV[i + 1])
    sums[name] = sum
  end
  for name, sum in pairs(sums) do
    pairs_of[#pairs_of + 1], pairs_of[#pairs_of + 2] = name, vectors.pack(sum)
  end
  redis.call('HSET', key, unpack(pairs_of))
  redis.call('PEXPIRE', key, ttl)
end

-- Written first: if Redis stops the script below, figures are lost, but none are counted twice.
local last = redis.call('GET', P .. 'figures:of:' .. worker)
redis.call('SET', P .. 'figures:of:' .. worker, number, 'PX', ONE_HOUR)
if last ~= number then
  local minute, ttl = digits(math.floor(now / 60000000)), (60 + KEPT) * 1000
  add_all(P .. 'figures:60:' .. minute, ttl, FIRST, tenants, FIRST, 'others')
  add_all(P .. 'figures:tenants:60:' .. minute, ttl, tenants, streams, sure, '(others)')
  add_all(P .. 'figures:streams:60:' .. minute, ttl, streams, #ARGV + 1, streams, 'others')
  add_all(P .. 'figures:tenants:total', MONTH, tenants, streams, sure, '(others)')
end
return digits(offset)
