-- lib/pausing: needs base. The mark that something is paused, for scripts that change pauses.

-- Keep STRING pausing in line with the hash. Call it before the first pause is written and after the last one is
-- deleted.
local function mark_pausing(will_be)
  local shall = will_be or redis.call('EXISTS', P .. 'paused') == 1
  local does = redis.call('EXISTS', P .. 'pausing') == 1
  if shall and not does then
    redis.call('SET', P .. 'pausing', 1)
  elseif does and not shall then
    redis.call('DEL', P .. 'pausing')
  end
end
