-- lib/hashes: needs now. Whole hashes, and fields that may be absent.

-- Read all fields of a hash, by name.
local function read_hash(key)
  local all, fields = redis.call('HGETALL', key), {}
  for i = 1, #all, 2 do
    fields[all[i]] = all[i + 1]
  end
  return fields
end

-- Set a field of a hash; delete it if the value is false.
local function set_field(key, field, value)
  if value then
    redis.call('HSET', key, field, value)
  else
    redis.call('HDEL', key, field)
  end
end
