#!lua
-- submit: create tasks whose ids are not known yet. Fails loudly when memory is full.
-- KEYS  prefix
-- ARGV  n × (id, name, stream, due µs or 0, group or '', envelope, locks)
-- returns n × (1 made | 0 known); or {'IMPOSSIBLE', id, why}, and none is made: it counts for more
--       than a limiter allows
-- @include base wake record
-- @defer limits locks impossible_lines
local made, woken = {}, {}
for i = 1, #ARGV, 7 do
  local id, lines = ARGV[i], ARGV[i + 6]
  local why = string.find(lines, 'L|', 1, true) and impossible_lines(lines)
  if why and redis.call('EXISTS', P .. 't:' .. id, P .. 'r:' .. id) == 0 then
    return {'IMPOSSIBLE', id, why}
  end
end
for i = 1, #ARGV, 7 do
  local stream, due = ARGV[i + 2], due_of(ARGV[i + 3])
  local new = submit_one(ARGV[i], ARGV[i + 1], stream, due, ARGV[i + 4], ARGV[i + 5], ARGV[i + 6])
  made[#made + 1] = new
  if new == 1 and due <= now then
    local size = size_of(stream)
    woken[size] = (woken[size] or 0) + 1
  end
end
for size, count in pairs(woken) do
  wake(size, count)
end
return made
