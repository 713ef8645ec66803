#!lua flags=allow-oom
-- room: check whether tasks could be submitted now; it answers like submit, and changes nothing.
-- KEYS  prefix
-- ARGV  n × (arguments of submit_one)
-- returns 1; {'FULL', …} as submit does; or, if tasks belong to another namespace, for each its namespace, '' if it
--       belongs or is known here
-- @include base wake record counting submitting routing
local function replace() end
-- @defer unique submits ceilings find_excess
local FIELDS, homes, ours, is_split = 8, {}, {}, false
for i = 1, marks[7] and #ARGV or 0, FIELDS do
  local home = elsewhere(ARGV[i + 7])
  local is_known = home and redis.call('EXISTS', P .. 't:' .. ARGV[i], P .. 'r:' .. ARGV[i]) > 0
  homes[#homes + 1] = home and not is_known and home or ''
  is_split = is_split or homes[#homes] ~= ''
  for k = i, homes[#homes] == '' and i + FIELDS - 1 or 0 do
    ours[#ours + 1] = ARGV[k]
  end
end
return is_capped and find_excess(is_split and ours or ARGV, 1) or is_split and homes or 1
