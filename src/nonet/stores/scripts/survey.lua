#!lua flags=allow-oom
-- survey: what there is still to do, all at one instant, as only tests may ask: it reads everything.
-- KEYS  prefix
-- ARGV  none
-- returns {µs until something is due (-1: nothing is), n × (id, name, state, whether it has run:
--       1|0) of each task that has not ended}
-- @include base
local left, cursor = {}, '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', P .. 't:*', 'COUNT', 1000)
  for _, key in ipairs(page[2]) do
    local record = read_fields(key, {'state', 'name', 'stream', 'attempt', 'deaths', 'suspect'})
    if record.state and record.stream ~= 'hold' then
      left[string.sub(key, #P + 3)] = record  -- a scan may show one twice
    end
  end
  cursor = page[1]
until cursor == '0'
local next_due = -1
for _, key in ipairs({P .. 'tasks:delayed', P .. 'watch', P .. 'deadlines'}) do
  local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  local pause = head[2] and math.max(0, tonumber(head[2]) - now)
  if pause and (next_due < 0 or pause < next_due) then
    next_due = pause
  end
end
local answer = {digits(next_due)}
for id, record in pairs(left) do
  answer[#answer + 1] = id
  answer[#answer + 1] = record.name or ''
  answer[#answer + 1] = record.state
  local has_run = (tonumber(record.attempt or '') or 0) > 0 or record.deaths or record.suspect
  answer[#answer + 1] = has_run and '1' or '0'
end
return answer
