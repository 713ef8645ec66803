-- lib/leaving: needs base, limits, locks. Keeps the locks of code that still runs after its attempt has ended.

-- Move the structural locks that such code still holds to a hold, whose record names the task in its field
-- left. The worker renews the hold until the code has ended; a lock that was lost before is not taken again.
-- Call this before the end of the attempt is written: if the script is cut in between, its repetition finds the
-- attempt as it was, and the locks moved.
local function leave_locks(id, record, owner, fence, locks, lock_ttl)
  local hold, lines, kept = id .. '~' .. fence, {}, {}
  for _, lock in ipairs(locks) do
    if not lock.limiter and holds(lock, owner) then  -- fault: survivor-keeps-lost
      kept[#kept + 1] = lock
      lines[#lines + 1] = string.format('%s|%s|%.0f|||', lock.kind, lock.name, lock.ttl)
    end
  end
  if #kept == 0 then
    return
  end
  records.put(hold, {state = 'held', stream = 'hold', name = record.name, gen = '0', fence = fence, owner = record.owner,
    started = digits(now), left = id, locks = table.concat(lines, '\n')}, '')
  records.write_all()
  records.keep(hold, lock_ttl + LOCKS_KEPT)
  for _, lock in ipairs(kept) do
    write_lock(lock, hold .. '/0/' .. fence)
  end
end
