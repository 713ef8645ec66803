#!lua flags=no-writes
-- workflow_list: read workflows by state, the last change first. It skips entries that have left the state, because
-- their keys were deleted or a script was cut; mend removes these from the lists.
-- KEYS  prefix
-- ARGV  most rows, where to begin ('' or what an earlier call returned), n × state
-- returns {where the next page begins, '' at the end, n × {workflow, steps, steps that have not ended, n × (field, value)}}
-- @include base
local most, FIRST_STATE = tonumber(ARGV[1]), 3
local from, last = string.match(ARGV[2], '^(%d+) (.*)$')
local found = {}

-- Whether an entry is behind the last one of the page before.
local function is_behind(score, workflow)
  return not from or tonumber(score) < tonumber(from) or score == from and workflow < last
end

-- The first entries that are still in the state.
local function entries_of(state)
  local index, TRIES, entries, at = P .. 'workflows:' .. state, 10, {}, 0
  local ties = from and redis.call('ZCOUNT', index, from, from) or 0  -- some of them were on the page before
  local wanted = most + 1 + ties
  for _ = 1, TRIES do
    local page = redis.call('ZRANGE', index, from or '+inf', '-inf', 'BYSCORE', 'REV', 'LIMIT', at, wanted, 'WITHSCORES')
    for i = 1, #page, 2 do
      if redis.call('HGET', P .. 'f:' .. page[i], 'state') == state then
        entries[#entries + 1] = {workflow = page[i], score = digits(tonumber(page[i + 1]))}
      end
    end
    at = at + wanted
    if #entries >= wanted or #page < 2 * wanted then
      break
    end
  end
  return entries
end

for i = FIRST_STATE, #ARGV do
  for _, entry in ipairs(entries_of(ARGV[i])) do
    if is_behind(entry.score, entry.workflow) then
      found[#found + 1] = entry
    end
  end
end
table.sort(found, function(one, other)
  local a, b = tonumber(one.score), tonumber(other.score)
  return a > b or a == b and one.workflow > other.workflow
end)
local answer = {''}
for i = 1, math.min(most, #found) do
  local key = P .. 'f:' .. found[i].workflow
  answer[i + 1] = {found[i].workflow, redis.call('HLEN', key .. ':graph'), redis.call('SCARD', key .. ':live'),
    unpack(redis.call('HGETALL', key))}
end
if #found > most then
  answer[1] = found[most].score .. ' ' .. found[most].workflow
end
return answer
