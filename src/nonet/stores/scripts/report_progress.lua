#!lua flags=allow-oom
-- report_progress: store how far a running attempt is. The record keeps it until the next report: readers ignore it
-- when the task is no longer delivered with this fence, so that starting and ending an attempt cost nothing more.
-- KEYS  prefix
-- ARGV  id, gen, fence, fraction (empty: unknown), text (at most 60 bytes, or 1 KiB of JSON)
-- returns OK | STALE (not the owner: nothing was kept)
-- @include base
local id, gen, fence, fraction, text = unpack(ARGV, 1, 5)
local record = read_record(id)
if record.gen ~= gen or record.fence ~= fence then
  return 'STALE'
end
change(id, {progress = fence .. '|' .. fraction .. '|' .. digits(now), doing = text})
return 'OK'
