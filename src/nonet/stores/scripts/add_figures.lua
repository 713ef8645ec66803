#!lua flags=allow-oom
-- add_figures: add what a worker has counted of its classes since its last call to the figures of this minute and of
-- these ten minutes. A repeated call, whose reply was lost, adds nothing.
-- KEYS  prefix
-- ARGV  worker, number of the call, n × (class, vector: MessagePack of place, count, place, count …; see
--       nonet/rules/figures.py)
-- returns µs by which the logical time is ahead of the server's clock
-- @include base
local worker, number, ONE_HOUR, MOST_CLASSES = ARGV[1], ARGV[2], 3600000, 200
-- Slot and how long it is kept after its end, in seconds: RESOLUTIONS in nonet/rules/figures.py.
local RESOLUTIONS = {{60, 7200}, {600, 172800}}

local function read_vector(packed)
  local fine, flat = pcall(cmsgpack.unpack, packed)
  local vector = {}
  for i = 1, fine and type(flat) == 'table' and #flat or 0, 2 do
    vector[flat[i]] = tonumber(flat[i + 1]) or 0
  end
  return vector
end

-- Add a vector to a field of a hash of vectors.
local function add(key, name, vector)
  local sum = read_vector(redis.call('HGET', key, name) or '')
  for place, count in pairs(vector) do
    sum[place] = (sum[place] or 0) + count
  end
  local flat = {}
  for place, count in pairs(sum) do
    flat[#flat + 1], flat[#flat + 2] = place, count
  end
  redis.call('HSET', key, name, cmsgpack.pack(flat))
end

local function add_all(key)
  local classes = redis.call('HLEN', key)
  for i = 3, #ARGV, 2 do
    local name = ARGV[i]
    if redis.call('HEXISTS', key, name) == 0 then
      name = classes < MOST_CLASSES and name or 'others'
      classes = classes + 1
    end
    add(key, name, read_vector(ARGV[i + 1]))
  end
end

-- Written first: if Redis stops the script below, figures are lost, but none are counted twice.
local last = redis.pcall('GET', P .. 'figures:of:' .. worker)
redis.call('SET', P .. 'figures:of:' .. worker, number, 'PX', ONE_HOUR)
if last ~= number then
  for _, resolution in ipairs(RESOLUTIONS) do
    local slot, kept = resolution[1], resolution[2]
    local key = P .. 'figures:' .. slot .. ':' .. digits(math.floor(now / 1000000 / slot))
    if not pcall(add_all, key) then  -- the key has a wrong type
      redis.call('DEL', key)
    end
    redis.call('PEXPIRE', key, (slot + kept) * 1000)
  end
end
return digits(offset)
