#!lua flags=no-writes
-- show_records: read records of tasks.
-- KEYS  prefix
-- ARGV  how many bytes of each envelope, n × id
-- returns n × {n × (field, value)}: empty for an unknown task, and for a record that another program has damaged
-- @include base flat
local most, answer, ids = tonumber(ARGV[1]), {}, {unpack(ARGV, 2)}
records.load(ids)
for i, id in ipairs(ids) do
  local fine, fields = pcall(flat, id, most)
  answer[i] = fine and fields or {}
end
return answer
