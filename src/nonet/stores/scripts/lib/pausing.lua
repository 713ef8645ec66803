-- lib/pausing: needs base. The hashes of pauses, for scripts that change them.

-- The key of `paused` or `periodic:paused`. Delete a key of another type, which a foreign client wrote; the
-- leader then restores the pauses it remembers.
local function pauses_in(name)
  local key = P .. name
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'hash' and kind ~= 'none' then
    redis.pcall('HDEL', P .. 'epoch', 'pauses')
    redis.call('DEL', key)
  end
  return key
end

-- Keep STRING pausing in line with the hash. Call it before the first pause is written and after the last one is
-- deleted. It writes only on a change, because a read-only user may call it.
local function mark_pausing(will_be)
  local shall = will_be or redis.call('EXISTS', pauses_in('paused')) == 1
  local does = redis.call('EXISTS', P .. 'pausing') == 1
  if shall and not does then
    redis.call('SET', P .. 'pausing', 1)
  elseif does and not shall then
    redis.call('DEL', P .. 'pausing')
  end
end
