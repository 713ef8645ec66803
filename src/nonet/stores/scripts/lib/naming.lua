-- lib/naming: needs base. The name by which people know a worker.

-- pid@host of a worker; its id if Redis has no report of it.
local function shown(worker)
  local info = redis.call('HGET', P .. 'w:' .. worker, 'info')
  return info and string.match(info, '"name":%s*"([^"]*)"') or worker
end
