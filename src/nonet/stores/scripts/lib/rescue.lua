-- lib/rescue: needs base, wake, record. The quarantine: entries that point to no task, and envelopes that
-- cannot be read. Also parks records that could not be moved.

-- Bytes up to `whole` are kept whole, of more only the first `piece`; `all` limits the bytes of all entries.
local QUARANTINE = {entries = 10000, all = 32 * 1048576, whole = 262144, piece = 65536}

-- Bytes that all entries hold.
local function bytes_in_quarantine()
  return tonumber(redis.call('GET', P .. 'quarantine:bytes') or '0')
end

-- Remove one entry (as XRANGE returns it); returns its number of bytes.
local function leave_quarantine(item)
  local held = 0
  for i = 1, #item[2], 2 do
    held = item[2][i] == 'bytes' and #item[2][i + 1] or held
  end
  redis.call('SET', P .. 'quarantine:bytes', digits(math.max(0, bytes_in_quarantine() - held)))
  redis.call('XDEL', P .. 'quarantine', item[1])
  return held
end

-- Add bytes to the quarantine, and remove the oldest entries if it is full. Returns the entry.
local function keep_in_quarantine(reason, task, key, entry, size, bytes)
  local added = redis.call('XADD', P .. 'quarantine', '*', 'at', digits(now), 'reason',
    string.sub(reason_of(reason), 1, 300), 'task', string.sub(task, 1, 200), 'stream', key,
    'entry', entry, 'size', digits(size), 'bytes', bytes)
  redis.call('HINCRBY', P .. 'counters', 'quarantined', 1)
  local held = bytes_in_quarantine() + #bytes
  redis.call('SET', P .. 'quarantine:bytes', digits(held))
  for _ = 1, 1000 do  -- a longer excess is removed by the next calls
    if held <= QUARANTINE.all and redis.call('XLEN', P .. 'quarantine') <= QUARANTINE.entries then
      break
    end
    local oldest = redis.call('XRANGE', P .. 'quarantine', '-', '+', 'COUNT', 1)[1]
    if oldest[1] == added then  -- the only one: the count was wrong
      redis.call('SET', P .. 'quarantine:bytes', #bytes)
      break
    end
    held = held - leave_quarantine(oldest)
  end
  return added
end

-- Quarantine a stream entry that is no pointer to a task; its fields are packed.
local function quarantine(key, entry, fields, problem)
  local size, kept = 0, {}
  for _, value in ipairs(fields) do
    size = size + #value
  end
  local room = size + 5 * #fields > QUARANTINE.whole and QUARANTINE.piece or QUARANTINE.whole
  for i, value in ipairs(fields) do
    if room <= 0 then
      break
    end
    kept[i] = string.sub(value, 1, room)
    room = room - #value - 5
  end
  local is_known = fields[1] == 'id' and records.has(fields[2])
  keep_in_quarantine(problem, is_known and fields[2] or '', key, entry, size,
    cmsgpack.pack(kept))
  drop(key, entry)
end

-- Quarantine the envelope of a record, once, however often it is read. The record stays; the caller ends the
-- task. key and entry: of the pointer to it.
local function quarantine_envelope(id, reason, key, entry)
  local record = read_record(id)
  if not record.gen or record.quarantined then
    return
  end
  local size = records.length(id, record)
  local most = size <= QUARANTINE.whole and QUARANTINE.whole or QUARANTINE.piece
  change(id, {quarantined = keep_in_quarantine(reason, id, key, entry, size, records.envelope(id, record, most))})
end

-- Park the record for a minute, with the reason for operators, so that it stays in one place. If there is no
-- such record, quarantine the pointer as evidence.
local function rescue(key, entry, fields, problem)
  if pcall(set_aside, fields[2], problem) then
    drop(key, entry)
  else
    quarantine(key, entry, fields, problem)
  end
end
