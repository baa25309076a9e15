-- Headrace's functions of one partition; metadata.lua follows in the same library. docs/REDIS.md lists the keys and
-- their fields.
--
-- Promises: each call is atomic. It checks everything before it writes anything. A call that is sent again after an
-- unknown outcome answers as the first one did. Numbers come as decimal text and stay below 2^53.
--
-- Every answer is an array that begins with one of these.
local DONE = 0
local FENCED = 1 -- another epoch, or another holder of the lease: the one that counts follows
local AT = 2 -- the log ends elsewhere: its end follows
local GONE = 3 -- no such partition of this topic: the topic that is there follows, or ''
local INVALID = 4 -- arguments that contradict each other or the data
local STALE = 5 -- a cleaning or a snapshot that is past: the number of the newest follows
local MORE = 6 -- a part is done: the end that is reached follows
local HELD = 7 -- somebody else has the lease
local CHANGED = 8 -- the server has another history than the lease: the lease's follows

local TOMBSTONE_MS = 3600000 -- longer than any broker leads without having heard of a deletion

local function decimal(number)
  return string.format('%.0f', number)
end

-- An id above all entries that end at this offset or below, and below all others.
local function after(offset)
  return decimal(offset) .. '-1'
end

local function of(key, ...)
  return redis.call('HMGET', key, ...)
end

-- Refuses a call for a partition that is gone, or of another epoch. `found`: its topic, birth, epoch and owner.
local function refused_by(found, topic, epoch)
  if found[1] ~= topic or not found[3] then
    return {GONE, found[1] or '', tonumber(found[2] or 0)}
  end
  if found[3] ~= epoch then
    return {FENCED, tonumber(found[3]), found[4]}
  end
end

local function refused(state, topic, epoch)
  return refused_by(of(state, 'topic', 'birth', 'epoch', 'owner'), topic, epoch)
end

local function entry(stream, offset)
  local id = decimal(offset) .. '-0'
  local found = redis.call('XRANGE', stream, id, id)
  return found[1] and found[1][2]
end

-- Whether pairs of end and batch rise from this offset.
local function rising(args, first, offset)
  if (#args - first) % 2 ~= 1 then
    return false
  end
  for i = first, #args, 2 do
    local at = tonumber(args[i])
    if not at or at <= offset then
      return false
    end
    offset = at
  end
  return true
end

local function all_there(stream, args, first)
  for i = first, #args, 2 do
    local found = entry(stream, tonumber(args[i]))
    if not found or found[2] ~= args[i + 1] then
      return false
    end
  end
  return true
end

-- keys: stream, state, times. args: topic, epoch, expected end, highest timestamp since the last entry of the time
-- index, 1 where it gets an entry behind these batches or 0, (end, batch)... Each command in it costs: it reads once, and
-- writes once beside the Stream.
local function append(keys, args)
  local found = of(keys[2], 'topic', 'birth', 'epoch', 'owner', 'end', 'bytes')
  local no = refused_by(found, args[1], args[2])
  if no then
    return no
  end
  local expected = tonumber(args[3])
  if #args < 7 or not rising(args, 6, expected) then
    return {INVALID}
  end
  local at = tonumber(found[5])
  local last = tonumber(args[#args - 1])
  if at ~= expected then
    if last <= at and all_there(keys[1], args, 6) then
      return {DONE, last}
    end
    return {AT, at}
  end
  local position = tonumber(found[6])
  for i = 6, #args, 2 do
    redis.call('XADD', keys[1], decimal(tonumber(args[i])) .. '-0', 'batch', args[i + 1])
    position = position + #args[i + 1]
  end
  local newest = args[5] == '1' and '-1' or args[4]
  redis.call('HSET', keys[2], 'end', decimal(last), 'newest', newest, 'bytes', decimal(position))
  if args[5] == '1' then
    redis.call('XADD', keys[3], decimal(last) .. '-0', 'timestamp', args[4], 'position', decimal(position))
  end
  return {DONE, last}
end

-- keys: state, stream, times, epochs, producers, next, aborted. args: topic, birth, epoch, owner.
local function claim(keys, args)
  local topic, birth, epoch, owner = args[1], tonumber(args[2]), tonumber(args[3]), args[4]
  local found = of(keys[1], 'topic', 'birth', 'epoch', 'owner')
  if found[1] and found[1] ~= topic then
    if birth <= tonumber(found[2]) then
      return {GONE, found[1], tonumber(found[2])}
    end
    redis.call('UNLINK', unpack(keys))
    found = {}
  elseif found[1] and not found[3] then
    return {GONE, found[1], tonumber(found[2])}
  end
  if found[3] then
    local at = tonumber(found[3])
    if at > epoch or (at == epoch and found[4] ~= owner) then
      return {FENCED, at, found[4]}
    end
    if at < epoch then -- the cleaning or the cut of an earlier leader is over
      redis.call('UNLINK', keys[6])
      redis.call('HDEL', keys[1], 'cleaning', 'reached')
    end
  else
    redis.call('HSET', keys[1], 'topic', topic, 'birth', decimal(birth), 'end', '0', 'start', '0', 'bytes', '0',
      'trimmed', '0', 'cleaned', '0', 'clean_to', '0', 'newest', '-1')
  end
  redis.call('HSET', keys[1], 'epoch', decimal(epoch), 'owner', owner)
  local state = of(keys[1], 'end', 'start', 'bytes', 'trimmed', 'cleaned')
  local newest = redis.call('ZREVRANGE', keys[4], 0, 0)[1]
  if newest ~= decimal(epoch) then
    redis.call('ZREMRANGEBYSCORE', keys[4], state[1], '+inf')
    redis.call('ZADD', keys[4], state[1], decimal(epoch))
  end
  return {DONE, tonumber(state[1]), tonumber(state[2]), tonumber(state[3]), tonumber(state[4]), tonumber(state[5])}
end

-- keys: stream, state, times, epochs, aborted. args: topic, epoch, new start, bytes before it.
local function trim(keys, args)
  local no = refused(keys[2], args[1], args[2])
  if no then
    return no
  end
  local start, trimmed = tonumber(args[3]), tonumber(args[4])
  local found = of(keys[2], 'start', 'end', 'trimmed', 'bytes')
  if start > tonumber(found[2]) or trimmed > tonumber(found[4]) then
    return {INVALID}
  end
  if start < tonumber(found[1]) or (start == tonumber(found[1]) and trimmed <= tonumber(found[3])) then
    return {DONE, tonumber(found[1])}
  end
  redis.call('HSET', keys[2], 'start', decimal(start), 'trimmed', decimal(math.max(trimmed, tonumber(found[3]))))
  redis.call('XTRIM', keys[1], 'MINID', after(start))
  redis.call('XTRIM', keys[3], 'MINID', after(start))
  redis.call('XTRIM', keys[5], 'MINID', after(start))
  local first = redis.call('ZREVRANGEBYSCORE', keys[4], decimal(start), '-inf', 'LIMIT', 0, 1)[1]
  if first then
    redis.call('ZREMRANGEBYSCORE', keys[4], '-inf', decimal(start))
    redis.call('ZADD', keys[4], decimal(start), first)
  end
  return {DONE, start}
end

-- Carries entries above one id and up to another to the end of a stream; answers the offset that it reached and how
-- many there were.
local function carry(from, to, above, till, most, reached)
  local found = redis.call('XRANGE', from, above, till, 'COUNT', most)
  for _, each in ipairs(found) do
    redis.call('XADD', to, each[1], unpack(each[2]))
    reached = tonumber(string.match(each[1], '^%d+'))
  end
  return reached, #found
end

local function take_place(from, to)
  redis.call('UNLINK', to)
  if redis.call('EXISTS', from) == 1 then
    redis.call('RENAME', from, to)
  end
end

-- keys: stream, state, times, epochs, producers, next, aborted. args: topic, epoch, new end, which is where a batch ends,
-- most entries to carry. A Stream refuses ids below those that were removed from its end, so another takes its place.
local function cut(keys, args)
  local no = refused(keys[2], args[1], args[2])
  if no then
    return no
  end
  local target, most = tonumber(args[3]), tonumber(args[4])
  local found = of(keys[2], 'start', 'end', 'cleaning', 'reached', 'clean_to')
  if target < tonumber(found[1]) or target > tonumber(found[2]) or most < 1 then
    return {INVALID}
  end
  if target == tonumber(found[2]) then
    return {DONE, target}
  end
  local mine = 'cut:' .. args[2] .. ':' .. decimal(target)
  local reached = found[3] == mine and tonumber(found[4]) or 0
  if found[3] ~= mine then
    redis.call('UNLINK', keys[6])
  end
  local id = decimal(target) .. '-0'
  local carried
  reached, carried = carry(keys[1], keys[6], '(' .. decimal(reached) .. '-0', id, most, reached)
  if carried == most then
    redis.call('HSET', keys[2], 'cleaning', mine, 'reached', decimal(reached))
    return {MORE, reached}
  end
  local bytes = 0
  for _, each in ipairs(redis.call('XRANGE', keys[1], '(' .. id, '+')) do
    bytes = bytes + #each[2][2]
  end
  take_place(keys[6], keys[1])
  carry(keys[3], keys[6], '-', id, 2147483647, 0)
  take_place(keys[6], keys[3])
  carry(keys[7], keys[6], '-', id, 2147483647, 0)
  take_place(keys[6], keys[7])
  redis.call('HSET', keys[2], 'end', decimal(target), 'clean_to', decimal(math.min(target, tonumber(found[5]))))
  redis.call('HINCRBY', keys[2], 'bytes', 0 - bytes) -- and never '-0'
  local aborted = tonumber(of(keys[2], 'aborted')[1] or 0)
  if aborted > target then
    redis.call('HSET', keys[2], 'aborted', decimal(target))
  end
  redis.call('HDEL', keys[2], 'cleaning', 'reached')
  redis.call('ZREMRANGEBYSCORE', keys[4], '(' .. decimal(target), '+inf')
  if not redis.call('ZSCORE', keys[4], args[2]) then
    redis.call('ZREMRANGEBYSCORE', keys[4], decimal(target), decimal(target))
    redis.call('ZADD', keys[4], decimal(target), args[2])
  end
  local known = redis.call('HGET', keys[5], 'offset')
  if known and tonumber(known) > target then
    redis.call('UNLINK', keys[5])
  end
  return {DONE, target}
end

-- keys: as of cut, and one for the old records. args: topic, epoch, offset at which an empty log begins, epoch of the
-- record before it or -1, snapshot of producers there or ''. A log that begins there already has records of its own.
local function restart(keys, args)
  local no = refused(keys[2], args[1], args[2])
  if no then
    return no
  end
  local at = decimal(tonumber(args[3]))
  if tonumber(of(keys[2], 'start')[1]) >= tonumber(at) then
    return {DONE, tonumber(at)}
  end
  if redis.call('EXISTS', keys[1]) == 1 then
    take_place(keys[1], keys[8])
  end
  redis.call('UNLINK', keys[3], keys[4], keys[5], keys[6], keys[7])
  redis.call('HSET', keys[2], 'start', at, 'end', at, 'bytes', '0', 'trimmed', '0', 'newest', '-1', 'clean_to', '0')
  redis.call('HDEL', keys[2], 'cleaning', 'reached', 'aborted')
  redis.call('ZADD', keys[4], at, args[2])
  if tonumber(args[4]) >= 0 then
    redis.call('ZADD', keys[4], decimal(tonumber(at) - 1), args[4])
  end
  if args[5] ~= '' then
    redis.call('HSET', keys[5], 'offset', at, 'state', args[5])
  end
  return {DONE, tonumber(at)}
end

-- keys: state, producers, aborted. args: topic, epoch, offset, the leader's snapshot of producers there, (offset behind
-- the marker, entry)... of transactions that were aborted below it.
local function producers(keys, args)
  local no = refused(keys[1], args[1], args[2])
  if no then
    return no
  end
  local offset = tonumber(args[3])
  if offset > tonumber(of(keys[1], 'end')[1]) or (#args > 4 and not rising(args, 5, 0))
      or (#args > 4 and tonumber(args[#args - 1]) > offset) then
    return {INVALID}
  end
  local known = tonumber(redis.call('HGET', keys[2], 'offset') or -1)
  if known > offset then
    return {STALE, known}
  end
  local reached = tonumber(of(keys[1], 'aborted')[1] or 0)
  for i = 5, #args, 2 do
    if tonumber(args[i]) > reached then
      reached = tonumber(args[i])
      redis.call('XADD', keys[3], decimal(reached) .. '-0', 'entry', args[i + 1])
      redis.call('HSET', keys[1], 'aborted', decimal(reached))
    end
  end
  redis.call('HSET', keys[2], 'offset', decimal(offset), 'state', args[4])
  return {DONE, offset}
end

-- The try of this cleaning that is under way: 0 where there is none.
local function try_of(cleaning, prefix)
  if cleaning and string.sub(cleaning, 1, #prefix) == prefix then
    return tonumber(string.sub(cleaning, #prefix + 1))
  end
  return 0
end

-- keys: state, next. args: topic, epoch, number of the cleaning, try, expected end, (end, batch)... Without batches the
-- try begins from nothing, and ends those before it: their calls may come late. Redis may have lost parts in a failover.
local function clean(keys, args)
  local no = refused(keys[1], args[1], args[2])
  if no then
    return no
  end
  local number, attempt, expected = tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
  local found = of(keys[1], 'cleaned', 'cleaning', 'reached', 'end')
  if number ~= tonumber(found[1]) + 1 then
    return {STALE, tonumber(found[1])}
  end
  local prefix = args[2] .. ':' .. args[3] .. ':'
  local known = try_of(found[2], prefix)
  if known > attempt then
    return {STALE, known}
  end
  local reached = known == attempt and tonumber(found[3]) or 0
  if #args == 5 then
    if known ~= attempt then
      redis.call('UNLINK', keys[2])
      redis.call('HSET', keys[1], 'cleaning', prefix .. args[4], 'reached', '0')
    end
    return {DONE, 0}
  end
  local last = tonumber(args[#args - 1])
  if not rising(args, 6, expected) or last > tonumber(found[4]) then
    return {INVALID}
  end
  if known ~= attempt or reached ~= expected then
    if last <= reached and all_there(keys[2], args, 6) then
      return {DONE, last}
    end
    return {AT, reached}
  end
  for i = 6, #args, 2 do
    redis.call('XADD', keys[2], decimal(tonumber(args[i])) .. '-0', 'batch', args[i + 1])
  end
  redis.call('HSET', keys[1], 'reached', decimal(last))
  return {DONE, last}
end

-- Checks triples of end, timestamp and position that rise up to an offset.
local function is_index(args, first, limit)
  if (#args - first + 1) % 3 ~= 0 then
    return false
  end
  local offset = 0
  for i = first, #args, 3 do
    local at = tonumber(args[i])
    if not at or at <= offset or at > limit or not tonumber(args[i + 1]) or not tonumber(args[i + 2]) then
      return false
    end
    offset = at
  end
  return true
end

-- keys: stream, state, times, next, aborted. args: topic, epoch, number of the cleaning, try, end of its batches, offset up
-- to which it is clean, most entries to carry, bytes that the cleaning removed, ids of aborted transactions without
-- records as 'id id ...', (end, timestamp, position)... of the time index up to there.
local function replace(keys, args)
  local no = refused(keys[2], args[1], args[2])
  if no then
    return no
  end
  local found = of(keys[2], 'cleaned', 'cleaning', 'reached', 'end', 'start', 'trimmed', 'bytes')
  local number, written, till = tonumber(args[3]), tonumber(args[5]), tonumber(args[6])
  local most, removed = tonumber(args[7]), tonumber(args[8])
  if number <= tonumber(found[1]) then
    if number == tonumber(found[1]) then
      return {DONE, tonumber(found[4])}
    end
    return {STALE, tonumber(found[1])}
  end
  if found[2] ~= args[2] .. ':' .. args[3] .. ':' .. args[4] or tonumber(found[3]) < written then
    return {AT, tonumber(found[3] or 0)}
  end
  local trimmed = tonumber(found[6]) + removed
  if till > tonumber(found[4]) or most < 1 or trimmed > tonumber(found[7]) or not is_index(args, 10, till) then
    return {INVALID}
  end
  local reached, carried = math.max(till, tonumber(found[3])), 0
  reached, carried = carry(keys[1], keys[4], '(' .. decimal(reached) .. '-0', '+', most, reached)
  if carried == most then
    redis.call('HSET', keys[2], 'reached', decimal(reached))
    return {MORE, reached}
  end
  take_place(keys[4], keys[1])
  redis.call('XTRIM', keys[1], 'MINID', after(tonumber(found[5])))
  local later = redis.call('XRANGE', keys[3], '(' .. decimal(till) .. '-0', '+')
  redis.call('UNLINK', keys[3])
  for bare in string.gmatch(args[9], '%d+') do
    redis.call('XDEL', keys[5], bare .. '-0')
  end
  for i = 10, #args, 3 do
    redis.call('XADD', keys[3], args[i] .. '-0', 'timestamp', args[i + 1], 'position', args[i + 2])
  end
  for _, each in ipairs(later) do
    redis.call('XADD', keys[3], each[1], unpack(each[2]))
  end
  redis.call('HSET', keys[2], 'cleaned', decimal(number), 'clean_to', decimal(till), 'trimmed', decimal(trimmed))
  redis.call('HDEL', keys[2], 'cleaning', 'reached')
  return {DONE, tonumber(found[4])}
end

-- keys: state, stream, times, epochs, producers, next, aborted. args: topic, birth.
local function delete(keys, args)
  local found = of(keys[1], 'topic', 'birth')
  if found[1] and found[1] ~= args[1] and tonumber(found[2]) >= tonumber(args[2]) then
    return {GONE, found[1], tonumber(found[2])}
  end
  redis.call('UNLINK', unpack(keys))
  redis.call('HSET', keys[1], 'topic', args[1], 'birth', args[2])
  redis.call('PEXPIRE', keys[1], TOMBSTONE_MS)
  return {DONE, 0}
end

local function register(name, callback, flags)
  redis.register_function{function_name = 'PREFIX_' .. name, callback = callback, flags = flags}
end

local small = {'allow-oom'} -- they free memory, or take little and let the cluster go on

register('append', append, {})
register('claim', claim, small)
register('trim', trim, small)
register('cut', cut, small)
register('restart', restart, small)
register('producers', producers, {})
register('clean', clean, {})
register('replace', replace, small)
register('delete', delete, small)
