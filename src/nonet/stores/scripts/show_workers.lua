#!lua flags=no-writes
-- show_workers: read some registered workers, dead ones included, and their deliveries.
-- KEYS  prefix
-- ARGV  how many tasks to name for each worker, workers …
-- returns {now µs, n × (worker, end of its registration µs, its info JSON, its last beat µs or '', why
--       it takes nothing or '', who asked it to drain or '', number of its deliveries,
--       n × (id, class, since µs or ''))}
-- @include base streams deliveries
local tasks, answer, FIRST = tonumber(ARGV[1]), {digits(now)}, 2

local function named(ids)
  local rows = {}
  for i, id in ipairs(ids) do
    local record = read_record(id)
    rows[i] = {id, record.name or '', record.started or ''}
  end
  return rows
end

for i = FIRST, #ARGV do
  local worker = ARGV[i]
  local ends = redis.call('ZSCORE', P .. 'workers', worker)
  if ends then
    local report = read_fields(P .. 'w:' .. worker, {'info', 'beat', 'off', 'drain'})
    local ids, count = tasks_of(worker, tasks)
    answer[#answer + 1] = {worker, ends, report.info or '', report.beat or '', report.off or '', report.drain or '', count, named(ids)}
  end
end
return answer
