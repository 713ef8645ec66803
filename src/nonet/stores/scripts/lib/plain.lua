-- lib/plain: needs now. Names of streams, a reader of hashes, and the records of plain tasks: those without a field that
-- few tasks have. Most calls of submit, fetch and settle need no other part.

-- A stream is named KIND:PRIORITY:SIZE. A worker reads the streams of its size by priority, and those of one
-- priority in the order of their kinds.
local PRIORITIES = {'realtime', 'normal', 'background'}  -- fault: priority-order
local SIZES = {'small', 'medium', 'large'}
local STREAM_KINDS = {'woken', 'tasks', 'suspects', 'burials'}

-- The pointer of a record whose pointer is in the list of a tenant.
local IN_LIST = '-'

local epoch = nil  -- HASH epoch; set by lib/epoch in the scripts that grant locks

-- Read some fields of a hash, by name; a missing or empty field is nil.
local function read_fields(key, names)
  local fields = {}
  for i, value in ipairs(redis.call('HMGET', key, unpack(names))) do
    fields[names[i]] = value and value ~= '' and value or nil
  end
  return fields
end

local function given(text)
  return text ~= '' and text or nil
end

-- A record is one string, the value of t:ID, so that one command reads or writes those of many tasks. It has lines:
--   'STATE GEN', or 'STATE+GEN' if it has fields that few tasks have
--   fence, started, owner, pointer, name, stream, tenant: empty if it has none
--   its locks, each a line; then an empty line
-- Behind them are, after a '+', a line with a length and so many bytes: these few fields as a map in msgpack; then the
-- envelope. A long envelope has a key of its own, b:ID, and the record a field `apart`: a record is written several times,
-- an envelope once. No part but this and lib/records touches these keys.
-- texts: the values that this call has read or written, by id; false: there is none
-- LAYOUT: how a namespace is kept, as HASH epoch says; raise it if older code cannot read what newer code writes.
local records = {texts = {}, LONG_ENVELOPE = 1024, LAYOUT = '1'}
do
  local texts, written = records.texts, {}  -- written: keys and values that records.write_all() writes

  -- Read some records with one command.
  function records.load(ids)
    local wanted, keys = {}, {}
    for _, id in ipairs(ids) do
      if texts[id] == nil then
        wanted[#wanted + 1], keys[#keys + 1], texts[id] = id, P .. 't:' .. id, false
      end
    end
    for i, text in ipairs(#keys > 0 and redis.call('MGET', unpack(keys)) or {}) do
      texts[wanted[i]] = text
    end
  end

  function records.text_of(id)
    if texts[id] == nil then
      texts[id] = redis.call('GET', P .. 't:' .. id)
    end
    return texts[id]
  end

  -- The locks in a value, which begin at a position, and where the next part begins.
  function records.locks_at(text, at)
    if string.byte(text, at) == 10 then
      return nil, at + 1
    end
    local last = string.find(text, '\n\n', at, true) or #text + 1
    return string.sub(text, at, last - 1), last + 2
  end

  -- The lines of a value behind the pointer.
  function records.behind_pointer(record)
    return '\n' .. (record.name or '') .. '\n' .. (record.stream or '') .. '\n' .. (record.tenant or '') .. '\n'
      .. (record.locks and record.locks .. '\n\n' or '\n')
  end

  function records.write_later(key, value)
    written[#written + 1], written[#written + 2] = key, value
  end

  -- Store a new queued task that has no field that few tasks have. rest: records.behind_pointer() of it. Returns
  -- false for a long envelope.
  function records.put_plain(id, gen, pointer, rest, envelope)
    if #envelope > records.LONG_ENVELOPE then
      return false
    end
    texts[id] = 'queued ' .. gen .. '\n\n\n\n' .. pointer .. rest .. envelope
    records.write_later(P .. 't:' .. id, texts[id])
    return true
  end

  -- A queued task that has no field that few tasks have, if its generation is gen: its pointer or '', all that follows the
  -- pointer, its tenant or '', its locks or nil, its envelope. For any other nil.
  function records.plain_queued(id, gen)
    local text, head = records.text_of(id), 'queued ' .. gen .. '\n\n\n\n'
    if not text or string.sub(text, 1, #head) ~= head then  -- fault: unusual-taken-for-plain
      return nil
    end
    local pointer, behind, tenant, at = string.match(text, '^([^\n]*)()\n[^\n]*\n[^\n]*\n([^\n]*)\n()', #head + 1)
    local locks, first = records.locks_at(text, at)
    return pointer, string.sub(text, behind), tenant, locks, string.sub(text, first)
  end

  -- Store that a worker has such a task, with the others that records.write_all() writes.
  function records.begin(id, gen, fence, started, owner, pointer, rest)
    texts[id] = 'running ' .. gen .. '\n' .. fence .. '\n' .. started .. '\n' .. owner .. '\n' .. pointer .. rest
    records.write_later(P .. 't:' .. id, texts[id])
  end

  -- The record of such a task that was delivered with this fence, with the bytes of its envelope. For any other nil.
  function records.plain_running(id, gen, fence)
    local text, head = records.text_of(id), 'running ' .. gen .. '\n' .. fence .. '\n'
    if not text or string.sub(text, 1, #head) ~= head then  -- fault: plain-fence-unchecked
      return nil
    end
    local started, owner, name, stream, tenant, at = string.match(text,
      '^([^\n]*)\n([^\n]*)\n[^\n]*\n([^\n]*)\n([^\n]*)\n([^\n]*)\n()', #head + 1)
    local locks, first = records.locks_at(text, at)
    return {state = 'running', gen = gen, started = started, owner = owner, name = name, stream = stream, tenant = tenant,
      locks = locks, bytes = #text - first + 1}
  end

  function records.write_all()
    if #written > 0 then
      redis.call('MSET', unpack(written))
      written = {}
    end
  end

  -- Delete records, with the envelopes that have keys of their own.
  function records.drop(ids)
    local keys = {}
    records.write_all()
    for _, id in ipairs(ids) do
      keys[#keys + 1] = P .. 't:' .. id
      if not texts[id] or string.find(texts[id], '^%l+%+') then
        keys[#keys + 1] = P .. 'b:' .. id
      end
      texts[id] = false
    end
    redis.call('DEL', unpack(keys))
  end
end

-- The generation in which a task was created: its rank in every queue until it ends. A record stores it as
-- `ticket` once `gen` differs or the task waits. record has the fields ticket, gen and state.
local function ticket_of(record)
  local is_first = record.state == 'queued' or record.state == 'running' or record.state == 'dying'
  return record.ticket or is_first and record.gen or nil
end

-- The entry id of a task that is created now, made of its gen. If the stream already has a later entry, the entry
-- gets another id, which the record names in field pointer: see pointer_of.
local function first_entry(gen)
  local us = tonumber(string.sub(gen, -3))
  return us and string.sub(gen, 1, -4) .. '-' .. us
end
