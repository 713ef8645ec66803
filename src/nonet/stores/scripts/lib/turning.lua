-- lib/turning: needs base, hashes, wake, limits, locks, events. Changes effective limits while tasks run. HASH limits has
-- the values of limits:config, except where limits:live overrides a field.

-- The value by which an operator overrides a field, or nil.
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
  local limit, window = parse_limit(value)
  return window and string.format('%d per %g s', limit, window / 1000) or value
end

-- Describe a change for people: which limit, and its values before and after.
local function change_in_words(field, before, after)
  local kind, vo, address = string.match(field, '^(%a)|([^|]*)|(.*)$')
  local words = string.gsub(address, '|', ' ')
  return KINDS[kind].word .. ' ' .. string.gsub(words, ' $', '') .. (vo ~= '' and ' of VO ' .. vo or '')
    .. ': ' .. in_words(before) .. ' -> ' .. in_words(after)
end

-- Check at once the queue of every limiter that one of these fields may concern: the tasks there may be
-- able to run now, or wait for another limit, or wait for one that can never be granted.
local function offer_limiters(fields)
  local turned, found = {}, false
  for _, field in ipairs(fields) do
    local kind, address = string.match(field, '^(%a)|[^|]*|(.*)$')
    turned[kind .. address] = true
  end
  for _, name in ipairs(redis.call('ZRANGE', P .. 'watch', 0, -1)) do
    if string.sub(name, 1, 8) == 'limiter:' then
      local common = string.gsub(name, '^(limiter:%a+:)@[^:]*:', '%1')  -- of a VO: limiter:KIND:@VO:…
      for _, address in ipairs(addresses_of(common)) do
        if turned[kind_named(name) .. address] then
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

-- Apply new values: a table of fields with the new value, or false to remove the field. Returns the changes in
-- words, in the order of their fields.
local function turn_limits(values)
  local fields, words = {}, {}
  for field, value in pairs(values) do
    if (redis.call('HGET', P .. 'limits', field) or false) ~= value then
      fields[#fields + 1] = field
    end
  end
  table.sort(fields)
  -- Make the queues due before changing the limits. If Redis stopped the script in between in the other order, a
  -- repeated call would find no change and wake no task.
  offer_limiters(fields)
  for i, field in ipairs(fields) do
    words[i] = change_in_words(field, redis.call('HGET', P .. 'limits', field), values[field])
    set_field(P .. 'limits', field, values[field])
  end
  return words
end
