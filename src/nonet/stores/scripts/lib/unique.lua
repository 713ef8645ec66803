-- lib/unique: needs base, wake, record. Who holds a unique key. The script defines replace(id, id of the newer
-- task). STRING u:KEY is 'until when (µs)|id'. The time is empty if the task holds the key as long as field
-- unique of its record (a letter for the mode, and the key) says so. A key whose owner is gone is free, even
-- if a cut script has left it behind.

-- The task that holds a key, or nil.
local function owner_of(key)
  local ends, id = string.match(redis.call('GET', P .. 'u:' .. key) or '', '^(%d*)|(.+)$')
  if not id or ends ~= '' then
    return id and tonumber(ends) > now and id or nil
  end
  local record = read_record(id)
  local mode = string.match(record.unique or '', '^(%l)' .. key .. '$')
  -- In mode until_start the first delivery, which sets the fence, gives the key up.
  return mode and not (mode == 's' and record.fence) and id or nil
end

-- Give a task the key, or return its holder. mode is start, done, latest or period, as the terms of a task name
-- it; its first letter is stored. The key is written before the record: see above.
local function claim_key(id, mode, span, key)
  local other = owner_of(key)
  if other and other ~= id then
    if mode ~= 'latest' then
      return other
    end
    replace(other, id)
  end
  if span > 0 then
    redis.call('SET', P .. 'u:' .. key, digits(now + span) .. '|' .. id, 'PX',
      digits(math.ceil(span / 1000) + 1000))
  else
    redis.call('SET', P .. 'u:' .. key, '|' .. id)
  end
  return nil
end
