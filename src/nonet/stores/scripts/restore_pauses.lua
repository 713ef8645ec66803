#!lua flags=allow-oom
-- restore_pauses: after a loss of data, pause what the leader remembers, and resume everything else. Pauses that
-- are newer than its last read stay.
-- KEYS  prefix
-- ARGV  term, epoch, when the leader last read the pauses (µs by the server's clock; 0: never),
--       n × (what, or entry:ENTRY of a periodic one; 'at (µs)|who|reason')
-- returns {how many pauses were restored, how many were ended}, or 0 if another term leads or the epoch is over
-- @include base hashes leading wake pausing resuming
local term, epoch_meant, looked = ARGV[1], ARGV[2], tonumber(ARGV[3])
if not leads(term) or redis.call('HGET', P .. 'epoch', 'since') ~= epoch_meant then
  return 0
end
local remembered = {paused = {}, ['periodic:paused'] = {}}
for i = 4, #ARGV, 2 do
  local what, value = ARGV[i], ARGV[i + 1]
  local entry = string.match(what, '^entry:(.*)$')
  remembered[entry and 'periodic:paused' or 'paused'][entry or what] = value
end

local function is_newer(value)
  return (tonumber(string.match(value, '^(%d+)|') or '') or 0) >= looked
end

local put, lifted = 0, {}
local function bring_in_line(name, wanted)
  local key, found = P .. name, read_hash(P .. name)
  for what, value in pairs(wanted) do
    if found[what] ~= value and not (found[what] and is_newer(found[what])) then
      redis.call('HSET', key, what, value)
      put = put + 1
    end
  end
  for what, value in pairs(found) do
    if not wanted[what] and not is_newer(value) then
      redis.call('HDEL', key, what)
      lifted[#lifted + 1] = name == 'paused' and what or 'entry:' .. what
    end
  end
end
mark_pausing(next(remembered.paused) ~= nil)
bring_in_line('paused', remembered.paused)
mark_pausing(false)
bring_in_line('periodic:paused', remembered['periodic:paused'])
start_again(lifted)
redis.call('HSET', P .. 'epoch', 'pauses', epoch_meant)  -- last: if Redis stops the script before this, the leader repeats it
return {put, #lifted}
