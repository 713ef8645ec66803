-- lib/flat: needs base. Records as Python reads them.

-- The fields and values of a record, with up to `most` bytes of its envelope; empty if there is none.
local function flat(id, most)
  local record, fields = read_record(id), {}
  record.envelope = record.state and most > 0 and records.envelope(id, record, most) or nil
  for field, value in pairs(record) do
    fields[#fields + 1], fields[#fields + 2] = field, value
  end
  return fields
end
