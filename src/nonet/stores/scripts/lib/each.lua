-- lib/each: needs base. Reads all records in one call, for scripts that only tests call.

-- Call act(id, record) for each record; a scan may show one twice.
local function each_record(act)
  local cursor = '0'
  repeat
    local page = redis.call('SCAN', cursor, 'MATCH', P .. 't:*', 'COUNT', 1000)
    for _, key in ipairs(page[2]) do
      local id = string.sub(key, #P + 3)
      act(id, read_record(id))
    end
    cursor = page[1]
  until cursor == '0'
end
