-- lib/records: needs now, plain. Reads and changes records of any kind.
local read_record, change
do
  local LINES = '^(%l+)([ +])(%d*)\n(%d*)\n(%d*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n()'
  local IN_LINES = {state = true, gen = true, fence = true, started = true, owner = true, pointer = true, name = true,
    stream = true, tenant = true, locks = true, envelope = true}
  local texts = records.texts

  function records.has(id)
    return records.text_of(id) ~= false
  end

  -- Whether a task has a record, or has ended and is remembered.
  function records.is_known(id)
    return texts[id] or redis.call('EXISTS', P .. 't:' .. id, P .. 'r:' .. id) > 0
  end

  -- A copy of the record of a task: its fields by name, also locks and envelope. A missing or empty field is nil; of an
  -- unknown task all are, and where another program has damaged the record.
  function read_record(id)
    local text = records.text_of(id)
    if not text then
      return {}
    end
    local state, sign, gen, fence, started, owner, pointer, name, stream, tenant, at = string.match(text, LINES)
    if not state then  -- another program has damaged it
      return {}
    end
    local record, locks = {}, nil
    locks, at = records.locks_at(text, at)
    if sign == '+' then
      local length, first = string.match(text, '^(%d+)\n()', at)
      at = first + length
      record = cmsgpack.unpack(string.sub(text, first, at - 1))
    end
    record.state, record.gen, record.fence, record.started = state, given(gen), given(fence), given(started)
    record.owner, record.pointer, record.name = given(owner), given(pointer), given(name)
    record.stream, record.tenant, record.locks = given(stream), given(tenant), locks
    record.envelope = not record.apart and string.sub(text, at) or nil
    return record
  end

  local function encoded(record)
    local few, packed = {}, ''
    for field, value in pairs(record) do
      if not IN_LINES[field] then
        few[field] = type(value) == 'number' and digits(value) or value
      end
    end
    if next(few) then
      packed = cmsgpack.pack(few)
      packed = #packed .. '\n' .. packed
    end
    return record.state .. (packed ~= '' and '+' or ' ') .. (record.gen or '') .. '\n' .. (record.fence or '') .. '\n'
      .. (record.started or '') .. '\n' .. (record.owner or '') .. '\n' .. (record.pointer or '')
      .. records.behind_pointer(record) .. packed .. (record.envelope or '')
  end

  -- Change fields of a record; '' and false remove one. Without a record nothing happens. more: further changes.
  function change(id, changes, more)
    local record = read_record(id)
    if not record.state then
      return
    end
    for _, those in ipairs({changes, more}) do
      for field, value in pairs(those) do
        record[field] = type(value) == 'number' and digits(value) or value and given(value) or nil
      end
    end
    records.write_all()  -- first: it may contain this record
    texts[id] = encoded(record)
    redis.call('SET', P .. 't:' .. id, texts[id], 'KEEPTTL')
  end

  -- Add one to a field that counts; returns the number.
  function records.raise(id, field)
    local number = tonumber(read_record(id)[field] or '0') + 1
    change(id, {[field] = number})
    return number
  end

  -- Store a new record, with the others that records.write_all() writes.
  function records.put(id, record, envelope)
    if #envelope > records.LONG_ENVELOPE then
      record.apart = '1'
      records.write_later(P .. 'b:' .. id, envelope)
    else
      record.envelope = envelope
    end
    texts[id] = encoded(record)
    records.write_later(P .. 't:' .. id, texts[id])
  end

  -- Let a record expire in ms, however often it is changed. Records of tasks never do.
  function records.keep(id, ms)
    redis.call('PEXPIRE', P .. 't:' .. id, ms)
  end

  -- The envelope of a record, or its first `most` bytes.
  function records.envelope(id, record, most)
    if record.apart then
      return redis.call('GETRANGE', P .. 'b:' .. id, 0, most - 1)
    end
    return string.sub(record.envelope or '', 1, most)
  end

  function records.length(id, record)
    return record.apart and redis.call('STRLEN', P .. 'b:' .. id) or #(record.envelope or '')
  end
end
