-- lib/turning: needs base, wake, limits, events. Changes the limits that hold while tasks run.
-- HASH limits is what limits:config says, unless limits:live says otherwise of the same field.

-- What an override says of a field, or nil.
local function live_value(field)
  local found = redis.call('HGET', P .. 'limits:live', field)
  return found and string.match(found, '^%S+')
end

local function config_value(field)
  return redis.call('HGET', P .. 'limits:config', field) or nil
end

local function in_words(value)
  if not value then
    return 'not set'
  end
  local limit, window = string.match(value, '^(%d+)|?(%d*)$')
  if not limit or window == '' then
    return value
  end
  return string.format('%s per %g s', limit, tonumber(window) / 1000)
end

local KINDS = {C = 'concurrency', L = 'rate'}

-- A change for people: which limit, from what to what.
local function change_in_words(field, before, after)
  local kind, vo, address = string.match(field, '^(%a)|([^|]*)|(.*)$')
  local words = string.gsub(address, '|', ' ')
  return KINDS[kind] .. ' ' .. string.gsub(words, ' $', '') .. (vo ~= '' and ' of VO ' .. vo or '')
    .. ': ' .. in_words(before) .. ' -> ' .. in_words(after)
end

-- Look at once at the queue of every limiter that one of these fields may concern: whoever waits
-- there may be able to run now, or waits for another limit, or for ever.
local function offer_limiters(fields)
  local turned, found = {}, false
  for _, field in ipairs(fields) do
    local kind, address = string.match(field, '^(%a)|[^|]*|(.*)$')
    turned[kind .. address] = true
  end
  for _, name in ipairs(redis.call('ZRANGE', P .. 'watch', 0, -1)) do
    if string.sub(name, 1, 8) == 'limiter:' then
      -- At the counter of a VO, too: limiter:KIND:@VO:…
      local addresses, kind = addresses_of((string.gsub(name, '^(limiter:%a+:)@[^:]*:', '%1')))
      for _, address in ipairs(addresses) do
        if turned[kind .. address] then
          redis.call('ZADD', P .. 'watch', digits(now), name)
          found = true
          break
        end
      end
    end
  end
  if found then
    wake_promoter_for(now)
  end
end

-- Let other values hold: a table of fields with the new value, or false for none. Returns the
-- changes in words, in the order of their fields.
local function turn_limits(values)
  local fields, words = {}, {}
  for field, value in pairs(values) do
    if (redis.call('HGET', P .. 'limits', field) or false) ~= value then
      fields[#fields + 1] = field
    end
  end
  table.sort(fields)
  -- First, so that a script that was cut and is repeated still wakes them.
  offer_limiters(fields)
  for i, field in ipairs(fields) do
    words[i] = change_in_words(field, redis.call('HGET', P .. 'limits', field), values[field])
    if values[field] then
      redis.call('HSET', P .. 'limits', field, values[field])
    else
      redis.call('HDEL', P .. 'limits', field)
    end
  end
  return words
end
