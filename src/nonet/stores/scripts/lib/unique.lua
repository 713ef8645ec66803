-- lib/unique: needs base, wake, record. The script has replace(id, id of the newer task). Who has a unique key. STRING u:KEY: 'µs until when|id', the time
-- empty where the key is the task's as long as its record says so (field unique: a letter for the
-- mode, and the key). A key that nobody owns any more is free, whatever a cut script has left.

-- The task that has a key, or nil.
local function owner_of(key)
  local ends, id = string.match(redis.call('GET', P .. 'u:' .. key) or '', '^(%d*)|(.+)$')
  if not id or ends ~= '' then
    return id and tonumber(ends) > now and id or nil
  end
  local record = read_fields(P .. 't:' .. id, {'unique', 'fence'})
  local mode = string.match(record.unique or '', '^(%l)' .. key .. '$')
  -- until_start: the first delivery gave it a fence, and the key up.
  return mode and not (mode == 's' and record.fence) and id or nil
end

-- By the first letters of start, done, latest and period, as the terms of a task name them. Give a
-- task the key, or say who has it. Written before its record: see above.
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
