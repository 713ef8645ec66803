-- lib/vectors: The vectors in which workers count: MessagePack of place, count, place, count …; see
-- nonet/rules/vectors.py.

local vectors = {}

-- Add a packed vector to sum (place → count), unless it cannot be read. Places from LOAD on say how much there was at an
-- instant: the largest number stays.
function vectors.add(sum, packed)
  local LOAD = 57
  local is_read, flat = pcall(cmsgpack.unpack, packed)
  if not is_read or type(flat) ~= 'table' then
    return
  end
  for i = 1, #flat, 2 do
    local place, count = flat[i], flat[i + 1]
    if place < LOAD then
      sum[place] = (sum[place] or 0) + count
    else
      sum[place] = math.max(sum[place] or 0, count)
    end
  end
end

function vectors.pack(sum)
  local flat, at = {}, 1
  for place, count in pairs(sum) do
    flat[at], flat[at + 1] = place, count
    at = at + 2
  end
  return cmsgpack.pack(flat)
end
