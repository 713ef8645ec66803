#!lua flags=allow-oom
-- add_figures: add what a worker has counted of its classes and of tenants since its last call to the figures of this
-- minute and of these ten minutes, and of tenants to their totals. A repeated call, whose reply was lost, adds nothing.
-- KEYS  prefix
-- ARGV  worker, number of the call, how many classes, how many tenants have a name in the configuration,
--       n × (class, vector: MessagePack of place, count, place, count …; see nonet/rules/vectors.py), n × (tenant,
--       vector), first those with a name in the configuration, then by their tasks
-- returns µs by which the logical time is ahead of the server's clock
-- @include base
local worker, number, ONE_HOUR, MONTH, MOST, FIRST = ARGV[1], ARGV[2], 3600000, 2592000000, 200, 5
local past_classes, past_named = FIRST + 2 * ARGV[3], FIRST + 2 * (ARGV[3] + ARGV[4])
-- Slot and how long it is kept after its end, in seconds: RESOLUTIONS in nonet/rules/figures.py.
local RESOLUTIONS = {{60, 7200}, {600, 172800}}

local function read_vector(packed)
  local flat, vector = cmsgpack.unpack(packed), {}
  for i = 1, #flat, 2 do
    vector[flat[i]] = flat[i + 1]
  end
  return vector
end

local function packed(vector)
  local flat = {}
  for place, count in pairs(vector) do
    flat[#flat + 1], flat[#flat + 2] = place, count
  end
  return cmsgpack.pack(flat)
end

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
    local kept = name == others and found[1] or was
    local sum = sums[name] or kept and read_vector(kept) or {}
    for place, count in pairs(read_vector(ARGV[i + 1])) do
      sum[place] = (sum[place] or 0) + count
    end
    sums[name] = sum
  end
  for name, sum in pairs(sums) do
    pairs_of[#pairs_of + 1], pairs_of[#pairs_of + 2] = name, packed(sum)
  end
  redis.call('HSET', key, unpack(pairs_of))
  redis.call('PEXPIRE', key, ttl)
end

local function add_tenants(key, ttl)
  add_all(key, ttl, past_classes, #ARGV + 1, past_named, '(others)')
end

-- Written first: if Redis stops the script below, figures are lost, but none are counted twice.
local last = redis.call('GET', P .. 'figures:of:' .. worker)
redis.call('SET', P .. 'figures:of:' .. worker, number, 'PX', ONE_HOUR)
if last ~= number then
  for _, resolution in ipairs(RESOLUTIONS) do
    local slot, kept = resolution[1], resolution[2]
    local place, ttl = slot .. ':' .. digits(math.floor(now / 1000000 / slot)), (slot + kept) * 1000
    add_all(P .. 'figures:' .. place, ttl, FIRST, past_classes, FIRST, 'others')
    add_tenants(P .. 'figures:tenants:' .. place, ttl)
  end
  add_tenants(P .. 'figures:tenants:total', MONTH)
end
return digits(offset)
