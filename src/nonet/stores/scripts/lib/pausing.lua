-- lib/pausing: needs base. The hashes of pauses, for those who change them.

-- The key of `paused` or `periodic:paused`. Of another type nobody of us wrote it: it is deleted, and
-- the leader puts back what it remembers.
local function pauses_in(name)
  local key = P .. name
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'hash' and kind ~= 'none' then
    redis.pcall('HDEL', P .. 'epoch', 'pauses')
    redis.call('DEL', key)
  end
  return key
end

-- To be called before the first pause is written, and after the last one is deleted. Where nothing
-- is to change nothing is written: who only looks may lack the permission.
local function mark_pausing(will_be)
  local shall = will_be or redis.call('EXISTS', pauses_in('paused')) == 1
  local does = redis.call('EXISTS', P .. 'pausing') == 1
  if shall and not does then
    redis.call('SET', P .. 'pausing', 1)
  elseif does and not shall then
    redis.call('DEL', P .. 'pausing')
  end
end
