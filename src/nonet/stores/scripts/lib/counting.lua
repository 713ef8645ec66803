-- lib/counting: needs plain. Counts the tasks that have not ended, and those that were accepted.

-- While there are ceilings, ends are counted in intervals of so many µs: they show how fast
-- places become free. A replaced task is not counted: the newer task takes its place.
local ENDS_BY = 15000000
local is_replacing = false

-- The hashes of counts, and what begins the names of their scopes, see lib/ceilings. Bytes are those of envelopes.
--   active          PRIORITY:SIZE|NAME → tasks
--   active:tenants  TENANT → tasks
--   active:bytes    TENANT → bytes, while a tenant has a ceiling of bytes
local COUNTED = {active = '', ['active:tenants'] = 'tenant:', ['active:bytes'] = 'tenant-bytes:'}

local add_to, counted_bytes, count_active, count_one, count_submitted
do
  local are_bytes_counted = is_capped and string.find(is_capped, ' bytes', 1, true)

  local function add_up(counts, key, field, by)
    local those = counts[key] or {}
    counts[key] = those
    those[field] = (those[field] or 0) + by
  end

  -- Add tasks of one kind to counts, which count_active() takes. record has the fields name and tenant; bytes: of their
  -- envelopes.
  function add_to(counts, stream, record, number, bytes)
    add_up(counts, 'active', stream .. '|' .. (record.name or ''), number)
    if record.tenant and record.tenant ~= '' then
      add_up(counts, 'active:tenants', record.tenant, number)
      if are_bytes_counted then
        add_up(counts, 'active:bytes', record.tenant, bytes)
      end
    end
  end

  -- The length of the envelope of a task, if that is counted.
  function counted_bytes(id, record)
    return are_bytes_counted and (record.bytes or records.length(id, record)) or 0
  end

  -- Count tasks that were created (numbers above 0) or ended. Count before records are created and after they are
  -- deleted, so that a script that was cut never counts too few tasks. is_correction: no task has ended.
  function count_active(counts, is_correction)
    local ends = is_capped and not is_correction and P .. 'ends:' .. digits(math.floor(now / ENDS_BY))
    for key, those in pairs(counts) do
      for field, by in pairs(those) do
        if redis.call('HINCRBY', P .. key, field, by) <= 0 then
          redis.call('HDEL', P .. key, field)
        end
        if ends then
          -- A field with 0 ends shows that a task could have ended in this interval.
          redis.call('HINCRBY', ends, COUNTED[key] .. field, by < 0 and not is_replacing and -by or 0)
        end
      end
    end
    if ends then
      local KEPT = 330000
      redis.call('PEXPIRE', ends, KEPT)
    end
  end

  -- Count one task that was created (1) or ended (-1).
  function count_one(stream, record, by, bytes)
    local counts = {}
    add_to(counts, stream, record, by, by * bytes)
    count_active(counts)
  end

  -- Count accepted tasks while metrics are collected, see measure.
  function count_submitted(stream, by)
    if marks[5] then
      redis.call('HINCRBY', P .. 'counters', 'submitted:' .. stream, by)
    end
  end
end
