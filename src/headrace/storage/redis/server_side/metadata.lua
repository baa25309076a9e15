-- Headrace's functions of the cluster's metadata: the controller's lease, the commit log, its snapshots and the topic
-- registry. partition.lua comes before, and has what both need.

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- keys: lease. args: holder, what others are to know of it, milliseconds, the highest number that it knows of.
local function take(keys, args)
  local found = of(keys[1], 'token', 'holder', 'until', 'about')
  local now, token, least = now_ms(), tonumber(found[1] or 0), tonumber(args[4])
  local lasts = found[2] and found[2] ~= '' and tonumber(found[3]) > now
  if lasts and found[2] ~= args[1] then
    return {HELD, token, found[2], found[4], tonumber(found[3]) - now}
  end
  if not lasts or token < least then
    token = math.max(token, least) + 1
  end
  redis.call('HSET', keys[1], 'token', decimal(token), 'holder', args[1], 'about', args[2],
    'until', decimal(now + tonumber(args[3])))
  return {DONE, token}
end

-- Refuses whoever does not have the lease now. That its time is over does not matter until somebody else takes it.
local function not_holder(lease, holder, token)
  local found = of(lease, 'token', 'holder')
  if found[1] ~= token or found[2] ~= holder then
    return {FENCED, tonumber(found[1] or 0), found[2] or ''}
  end
end

-- Refuses the holder, too, where the server has another history than the one in which a holder began last. It has
-- failed over or was restarted since, and may lack entries: the lease has to be taken again, with a doubt.
local function not_controller(lease, head, holder, token)
  local no = not_holder(lease, holder, token)
  if no then
    return no
  end
  local history = of(head, 'history')[1] or ''
  if history ~= (string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') or '') then
    return {CHANGED, history}
  end
end

-- keys: lease, head. args: holder, token, milliseconds.
local function renew(keys, args)
  local no = not_controller(keys[1], keys[2], args[1], args[2])
  if no then
    return no
  end
  redis.call('HSET', keys[1], 'until', decimal(now_ms() + tonumber(args[3])))
  return {DONE, tonumber(args[2])}
end

-- keys: lease. args: holder, token.
local function release(keys, args)
  local no = not_holder(keys[1], args[1], args[2])
  if no then
    return no
  end
  redis.call('HSET', keys[1], 'holder', '', 'about', '', 'until', '0')
  return {DONE, tonumber(args[2])}
end

-- The changes of the topic registry in args[first] to args[last]: 'put', name, number of fields, field, value, ... or
-- 'del', name. Answers the number of topics, or nil where they are malformed; `each` is called for every one.
local function changes(args, first, last, each)
  local i, count = first, 0
  while i <= last do
    count = count + 1
    local name, fields = args[i + 1], 0
    if args[i] == 'put' then
      fields = tonumber(args[i + 2])
      if not name or not fields or fields < 1 or i + 2 + 2 * fields > last then
        return nil
      end
    elseif args[i] ~= 'del' or not name or i + 1 > last then
      return nil
    end
    if each then
      each(count, args[i], name, i + 3, fields)
    end
    i = args[i] == 'put' and i + 3 + 2 * fields or i + 2
  end
  return count
end

-- keys: lease, metadata, head, topics, (hash of a topic)... args: holder, token, index of the last entry, changes of
-- the topic registry..., events. A topic's hash gets the time at which the first such change of its id came.
local function commit(keys, args)
  local no = not_controller(keys[1], keys[3], args[1], args[2])
  if no then
    return no
  end
  local events, index = args[#args], tonumber(args[3])
  if #args < 4 or changes(args, 4, #args - 1) ~= #keys - 4 then
    return {INVALID}
  end
  local head = of(keys[3], 'index', 'chain')
  local at = tonumber(head[1] or 0)
  if at ~= index then
    local found = at > index and entry(keys[2], index + 1)
    if found and found[2] == args[2] and found[6] == events then
      return {DONE, index + 1, found[4]}
    end
    return {AT, at, head[2] or ''}
  end
  local chain = redis.sha1hex((head[2] or '') .. '\n' .. args[2] .. '\n' .. events)
  redis.call('XADD', keys[2], decimal(index + 1) .. '-0', 'token', args[2], 'chain', chain, 'events', events)
  redis.call('HSET', keys[3], 'index', decimal(index + 1), 'chain', chain)
  changes(args, 4, #args - 1, function(number, kind, name, first, fields)
    local topic = keys[4 + number]
    local was = of(topic, 'id', 'created')
    redis.call('UNLINK', topic)
    if kind == 'put' then
      for i = first, first + 2 * fields - 2, 2 do
        redis.call('HSET', topic, args[i], args[i + 1])
      end
      local is_same = was[2] and was[1] == of(topic, 'id')[1]
      redis.call('HSET', topic, 'created', is_same and was[2] or decimal(now_ms()))
      redis.call('SADD', keys[4], name)
    else
      redis.call('SREM', keys[4], name)
    end
  end)
  return {DONE, index + 1, chain}
end

-- keys: lease, head. args: holder, token, number of the doubt that is to come.
local function intend(keys, args)
  local no = not_holder(keys[1], args[1], args[2])
  if no then
    return no
  end
  local number, known = tonumber(args[3]), tonumber(of(keys[2], 'intended')[1] or 0)
  if known > number then
    return {STALE, known}
  end
  redis.call('HSET', keys[2], 'intended', decimal(number))
  return {DONE, number}
end

-- keys: lease, metadata, head. args: holder, token, index of the last entry, index of the new one, history of the
-- server, number of the doubt, events. Without events it only notes the history, where there is no entry yet.
local function doubt(keys, args)
  local no = not_holder(keys[1], args[1], args[2])
  if no then
    return no
  end
  local index, new, events = tonumber(args[3]), tonumber(args[4]), args[7]
  if (events == '' and new > 0) or (events ~= '' and (new <= index or index == 0)) then
    return {INVALID}
  end
  local head = of(keys[3], 'index', 'chain')
  local at = tonumber(head[1] or 0)
  if at ~= index then
    local found = at >= new and entry(keys[2], new)
    if found and found[2] == args[2] and found[6] == events then
      return {DONE, new, found[4]}
    end
    return {AT, at, head[2] or ''}
  end
  if events == '' then
    redis.call('HSET', keys[3], 'history', args[5])
    return {DONE, 0, ''}
  end
  local chain = redis.sha1hex((head[2] or '') .. '\n' .. args[2] .. '\n' .. events)
  redis.call('XADD', keys[2], decimal(new) .. '-0', 'token', args[2], 'chain', chain, 'events', events)
  redis.call('HSET', keys[3], 'index', decimal(new), 'chain', chain, 'history', args[5], 'doubts', args[6])
  return {DONE, new, chain}
end

-- keys: lease, snapshot:next, head. args: holder, token, index, number of the part from 0, the part.
local function snapshot_part(keys, args)
  local no = not_controller(keys[1], keys[3], args[1], args[2])
  if no then
    return no
  end
  local found = of(keys[2], 'index', 'token')
  if found[1] ~= args[3] or found[2] ~= args[2] then
    redis.call('UNLINK', keys[2])
    redis.call('HSET', keys[2], 'index', args[3], 'token', args[2])
  end
  redis.call('HSET', keys[2], args[4], args[5])
  return {DONE, tonumber(args[4])}
end

-- keys: lease, metadata, head, snapshot, snapshot:next. args: holder, token, index, parts, first index to keep.
local function snapshot(keys, args)
  local no = not_controller(keys[1], keys[3], args[1], args[2])
  if no then
    return no
  end
  local index, parts, keep = tonumber(args[3]), tonumber(args[4]), tonumber(args[5])
  local kept = tonumber(of(keys[4], 'index')[1] or 0)
  if kept >= index then
    return {kept == index and DONE or STALE, kept}
  end
  local found = of(keys[5], 'index', 'token')
  local last = entry(keys[2], index)
  if not last or keep > index + 1 or found[1] ~= args[3] or found[2] ~= args[2]
      or redis.call('HLEN', keys[5]) ~= parts + 2 then
    return {INVALID}
  end
  redis.call('HSET', keys[5], 'chain', last[4], 'parts', decimal(parts))
  take_place(keys[5], keys[4])
  redis.call('XTRIM', keys[2], 'MINID', decimal(keep) .. '-0')
  return {DONE, index}
end

register('take', take, small)
register('renew', renew, small)
register('release', release, small)
register('commit', commit, small)
register('intend', intend, small)
register('doubt', doubt, small)
register('snapshot_part', snapshot_part, small)
register('snapshot', snapshot, small)
