-- lib/rescue: needs base, wake, record. What becomes of a pointer whose record could not be moved.

local function drop(key, entry)
  redis.call('XACK', key, 'workers', entry)
  redis.call('XDEL', key, entry)
end

local function quarantine(key, entry, fields, problem)
  redis.call('XADD', P .. 'quarantine', 'MAXLEN', '~', 10000, '*', 'reason', reason_of(problem),
    'stream', key, 'entry', entry, 'bytes', cmsgpack.pack(fields))
  drop(key, entry)
end

-- Let the record wait for a minute, where operators see it with the reason, so that it stays in
-- one place. Only what is no record is lost to its task: its pointer is kept as evidence.
local function rescue(key, entry, fields, problem)
  if pcall(set_aside, fields[2], problem) then
    drop(key, entry)
  else
    quarantine(key, entry, fields, problem)
  end
end
