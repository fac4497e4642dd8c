-- One batch of what clients ask of the store: reads, groups of writes, pages, and the change log.
-- A group is decided as a whole before any of it is written. No arithmetic but adding and comparing integers.
--
-- An item is a hash. Integers are kept as decimal text, all else behind a letter that tells its type. Two fields
-- are the store's own: '\0v', another text after every write, and on a bucket '\0h', the hour of its last mark.
-- Beside the items of a namespace, whose tag all keys begin with, stand
--   p<partition>      sort keys of a partition, in order         e   items that expire, by their ttl
--   x<n>:<partition>  places of an index, in order               c   counters: news, marks, the log's position
--   m<item>, o        marks of a bucket; buckets by first mark   l   entries of the log that nobody has trimmed

local call, args, keys = redis.call, ARGV, KEYS
local VERSION, HOUR, MARKS_MAX, MARKS_AT_ONCE = '\0v', '\0h', 20000, 200
local time = call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local stamp = string.format('%.0f:', now_us)
local now_ms, root = args[1], args[2]
local hour = string.format('%.0f', math.floor(tonumber(now_ms) / 3600000))
local at, key_at, written = 3, 0, 0
local tag, tags = '', {}

-- Whose keys are meant from now on: those of the namespace of this one.
local function enter(key)
  if tag ~= '' and key:sub(1, #tag) == tag then return end
  tag = key:sub(1, key:find('}', 1, true))
  if not tags[tag] then
    tags[tag] = true
    tags[#tags + 1] = tag
  end
end

local function next_key()
  key_at = key_at + 1
  enter(keys[key_at])
  return keys[key_at]
end

-- Integers as decimal text: a number of Lua is exact only below 2^53.

local function in_bytes(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = a:byte(i), b:byte(i)
    if x ~= y then return x < y and -1 or 1 end
  end
  return #a == #b and 0 or #a < #b and -1 or 1
end

local function is_integer(text)
  local first = text:byte(1) or 0
  return first == 45 or (first >= 48 and first <= 57)
end

local function compare(a, b)
  if #a < 16 and #b < 16 then
    local x, y = tonumber(a), tonumber(b)
    return x == y and 0 or x < y and -1 or 1
  end
  local below, other_below = a:byte(1) == 45, b:byte(1) == 45
  if below ~= other_below then return below and -1 or 1 end
  local order = #a == #b and in_bytes(a, b) or #a < #b and -1 or 1
  return below and -order or order
end

local function plus_at_length(a, b)
  local function limbs(digits)
    local found = {}
    for last = #digits, 1, -14 do
      found[#found + 1] = tonumber(digits:sub(math.max(1, last - 13), last))
    end
    return found
  end

  local function from_limbs(found)
    while #found > 1 and found[#found] == 0 do found[#found] = nil end
    local texts = {string.format('%.0f', found[#found])}
    for i = #found - 1, 1, -1 do texts[#texts + 1] = string.format('%014.0f', found[i]) end
    return table.concat(texts)
  end
  local below, other_below = a:byte(1) == 45, b:byte(1) == 45
  if below then a = a:sub(2) end
  if other_below then b = b:sub(2) end
  local sign = below == other_below and 1 or -1
  if sign < 0 and compare(a, b) < 0 then a, b, below = b, a, other_below end
  local sum, other, carry = limbs(a), limbs(b), 0
  for i = 1, math.max(#sum, #other) do
    local limb = (sum[i] or 0) + sign * (other[i] or 0) + carry
    carry = limb >= 1e14 and 1 or limb < 0 and -1 or 0
    sum[i] = limb - carry * 1e14
  end
  if carry > 0 then sum[#sum + 1] = carry end
  local text = from_limbs(sum)
  return (below and text ~= '0') and '-' .. text or text
end

local function plus(a, b)
  if #a < 16 and #b < 16 then return string.format('%.0f', tonumber(a) + tonumber(b)) end
  return plus_at_length(a, b)
end

-- Writes: decided first, performed when all of their group hold.

local function holds(test, present, value, there)
  if test == '=' then return present == value end
  if test == 'n' then return not present end
  if test == '>' then return present and is_integer(present) and compare(present, value) >= 0 end
  if test == '<' then return present and is_integer(present) and compare(present, value) <= 0 end
  if test == 'e' then return there end
  if test == 'a' then return not there end
  if not present or present:byte(1) ~= 115 then return false end
  local order = in_bytes(present, value)
  return test == ']' and order >= 0 or test == '[' and order <= 0
end

local function decide()
  local key, kind, moves, names = next_key(), args[at], args[at + 1], at + 3
  at = names + tonumber(args[at + 2])
  local found = call('HMGET', key, unpack(args, names, at - 1))
  local tests, adds = at + 1, at + 1 + 2 * tonumber(args[at])
  local sets = adds + 1 + tonumber(args[adds])
  at = sets + 1 + tonumber(args[sets])
  local known, role, values = args[at], args[at + 1], at + 2
  local there, held = found[1], true
  at = values
  for test = tests, adds - 2, 2 do
    if not holds(args[test], found[tonumber(args[test + 1])], args[at], there) then held = false end
    at = at + 1
  end
  local fields, removed, other = {}, {}, false
  for place = adds + 1, sets - 1 do
    local n = tonumber(args[place])
    local present = found[n]
    if present and not is_integer(present) then
      held = false
    else
      fields[#fields + 1] = args[names + n - 1]
      fields[#fields + 1] = present and plus(present, args[at]) or args[at]
      other = other or not present
    end
    at = at + 1
  end
  for place = sets + 1, values - 3 do
    local n = tonumber(args[place])
    local name, value = args[names + n - 1], args[at]
    if value == '' then
      removed[#removed + 1] = name
      other = other or found[n]
    else
      fields[#fields + 1] = name
      fields[#fields + 1] = value
      other = other or not found[n] or ((name == 'parent_id' or name == 'cascade') and found[n] ~= value)
    end
    at = at + 1
  end
  if kind == 'P' then
    local last = at + 2 * tonumber(args[at])
    for i = at + 1, last do fields[#fields + 1] = args[i] end
    at = last + 1
  end
  return {
    key = key, kind = kind, moves = moves ~= '', role = role, held = held, there = there, known = known,
    hour = found[2], fields = fields, removed = removed, other = other,
  }
end

-- What a warm acquire needs nothing of, made when it is first needed: closures take time.

local function make_rare()
  local rare = {}

  -- Where items stand.

  local function as_map(flat)
    local map = {}
    for i = 1, #flat, 2 do map[flat[i]] = flat[i + 1] end
    return map
  end

  local function place_of(rest)
    local length, names = rest:match('^i(%d+):(.*)$')
    length = tonumber(length)
    return names:sub(1, length), names:sub(length + 1)
  end

  local function escaped(text) return (text:gsub('%z', '\0\255')) end

  local function tag_of(partition)
    local name = partition:match('^[^/]*')
    return root .. name:gsub('[%%{}]', {['%'] = '%25', ['{'] = '%7B', ['}'] = '%7D'}) .. '}'
  end

  local function index_set(map, n)
    local partition, sort = map['GSI' .. n .. 'PK'], map['GSI' .. n .. 'SK']
    if not partition or not sort or partition:byte(1) ~= 115 or sort:byte(1) ~= 115 then return nil end
    partition = partition:sub(2)
    return tag_of(partition) .. 'x' .. n .. ':' .. partition, sort:sub(2)
  end

  local function lifetime(map)
    local ttl = map['ttl']
    return ttl and is_integer(ttl) and ttl or nil
  end

  local function relocate(rest, old, new)
    local partition, sort = place_of(rest)
    local behind = '\0\0' .. escaped(partition) .. '\0\0' .. escaped(sort)
    if new and not old then call('ZADD', tag .. 'p' .. partition, 0, sort) end
    if old and not new then call('ZREM', tag .. 'p' .. partition, sort) end
    local was, is = old or {}, new or {}
    for n = 1, 4 do
      local from, from_sort = index_set(was, n)
      local to, to_sort = index_set(is, n)
      if from ~= to or from_sort ~= to_sort then
        if from then call('ZREM', from, escaped(from_sort) .. behind) end
        if to then call('ZADD', to, 0, escaped(to_sort) .. behind) end
      end
    end
    local until_s, from_s = lifetime(is), lifetime(was)
    if until_s and until_s ~= from_s then call('ZADD', tag .. 'e', until_s, rest) end
    if from_s and not until_s then call('ZREM', tag .. 'e', rest) end
  end

  -- Marks: what a bucket was before its first write of an hour, for whoever counts usage.

  local function marks_of(rest)
    local text, offset, marks = call('GET', tag .. 'm' .. rest), 0, {}
    while text and offset >= 0 do offset, marks[#marks + 1] = cmsgpack.unpack_one(text, offset) end
    return marks
  end

  local function unmark(rest)
    local marks = #marks_of(rest)
    if marks == 0 then return end
    call('HINCRBY', tag .. 'c', 'marks', -marks)
    call('DEL', tag .. 'm' .. rest)
    call('ZREM', tag .. 'o', rest)
    call('HDEL', tag .. rest, HOUR)
  end

  local function mark(rest, image, gone)
    while tonumber(call('HGET', tag .. 'c', 'marks') or 0) >= MARKS_MAX do
      local oldest = call('ZRANGE', tag .. 'o', 0, 0)[1]
      if oldest then unmark(oldest) else call('HDEL', tag .. 'c', 'marks') end
    end
    call('HINCRBY', tag .. 'c', 'marks', 1)
    call('APPEND', tag .. 'm' .. rest, cmsgpack.pack({now_ms, gone, image}))
    call('ZADD', tag .. 'o', 'NX', string.format('%.0f', now_us + written), rest)
  end

  local function forget(rest)
    unmark(rest)
    for _, text in ipairs(call('LRANGE', tag .. 'l', 0, -1)) do
      if cmsgpack.unpack(text)[2] == rest then call('LREM', tag .. 'l', 1, text) end
    end
  end

  local function is_deleted(map) return map['status'] == 'sdeleted' end

  local function says_other_things(old, new)
    if old['parent_id'] ~= new['parent_id'] or old['cascade'] ~= new['cascade'] then return true end
    for name in pairs(old) do if not new[name] and name ~= HOUR then return true end end
    for name in pairs(new) do if not old[name] and name ~= HOUR then return true end end
    return false
  end

  local function perform_wholly(write)
    local key, rest = write.key, write.key:sub(#tag + 1)
    local flat = write.there and call('HGETALL', key)
    local old, new = flat and as_map(flat), nil
    if write.kind ~= 'D' then
      new = write.kind == 'U' and flat and as_map(flat) or {}
      for i = 1, #write.fields, 2 do new[write.fields[i]] = write.fields[i + 1] end
      for _, name in ipairs(write.removed) do new[name] = nil end
      new[VERSION], new[HOUR] = write.version, nil
      if write.role == 'b' then
        if is_deleted(new) then
          forget(rest)
        elseif not old then
          mark(rest, false, false)
        elseif write.hour ~= hour or says_other_things(old, new) then
          mark(rest, flat, false)
          new[HOUR] = hour
        else
          new[HOUR] = hour
        end
      end
    elseif write.role == 'b' then
      forget(rest)
    end
    if flat and write.kind ~= 'U' then call('DEL', key) end
    if new then
      local fields = write.fields  -- in the order in which they were given
      fields[#fields + 1] = VERSION
      fields[#fields + 1] = new[VERSION]
      if new[HOUR] then
        fields[#fields + 1] = HOUR
        fields[#fields + 1] = new[HOUR]
      elseif write.hour then
        write.removed[#write.removed + 1] = HOUR
      end
      call('HSET', key, unpack(fields))
      if #write.removed > 0 then call('HDEL', key, unpack(write.removed)) end
    end
    if old or new then relocate(rest, old, new) end
  end

  function rare.S()
    next_key()
    at = at + 1
    local before = '(' .. string.format('%.3f', tonumber(now_ms) / 1000)
    local due = call('ZRANGEBYSCORE', tag .. 'e', '-inf', before, 'LIMIT', 0, args[at - 1])
    for _, rest in ipairs(due) do
      local flat = call('HGETALL', tag .. rest)
      local old = as_map(flat)
      local _, sort = place_of(rest)
      written = written + 1
      if sort == '#STATE' and #flat > 0 and not is_deleted(old) then mark(rest, flat, true) end
      relocate(rest, old, nil)
      call('DEL', tag .. rest)
      call('ZREM', tag .. 'e', rest)
    end
    return #due
  end

  local function version_of(image)
    for i = 1, #image, 2 do if image[i] == VERSION then return image[i + 1] end end
  end

  local function became(rest)
    local marks, present, found = marks_of(rest), call('HGETALL', tag .. rest), {}
    for i, one in ipairs(marks) do
      local image, after = one[3], marks[i + 1] and marks[i + 1][3]
      if not marks[i + 1] then after = #present > 0 and present end
      if after and not one[2] and not (image and version_of(image) == version_of(after)) then
        found[#found + 1] = {image, after, one[1]}
      end
    end
    return found
  end

  local function work_out(marked)
    local position = tonumber(call('HGET', tag .. 'c', 'position') or 0)
    for _, rest in ipairs(marked) do
      for _, one in ipairs(became(rest)) do
        position = math.max(position + 1, now_us)
        call('RPUSH', tag .. 'l', cmsgpack.pack({string.format('%.0f', position), rest, unpack(one)}))
      end
      unmark(rest)
    end
    call('HSET', tag .. 'c', 'position', string.format('%.0f', position))
  end

  function rare.R()
    next_key()
    at = at + 1
    local rows, entries = tonumber(args[at - 1]), {}
    local texts = call('LRANGE', tag .. 'l', 0, rows - 1)
    while #texts == 0 do
      local marked = call('ZRANGE', tag .. 'o', 0, MARKS_AT_ONCE - 1)
      if #marked == 0 then break end
      work_out(marked)
      texts = call('LRANGE', tag .. 'l', 0, rows - 1)
    end
    for i, text in ipairs(texts) do entries[i] = cmsgpack.unpack(text) end
    return entries
  end

  function rare.L()
    next_key()
    if call('EXISTS', tag .. 'l') == 1 then return 1 end
    for _, rest in ipairs(call('ZRANGE', tag .. 'o', 0, -1)) do
      if #became(rest) > 0 then return 1 end
    end
    return 0
  end

  function rare.X()
    next_key()
    at = at + 1
    local text = call('LINDEX', tag .. 'l', 0)
    while text and tonumber(cmsgpack.unpack(text)[1]) <= tonumber(args[at - 1]) do
      call('LPOP', tag .. 'l')
      text = call('LINDEX', tag .. 'l', 0)
    end
    return 1
  end

  rare.mark, rare.perform_wholly = mark, perform_wholly
  return rare
end

local made
local function rarely()
  made = made or make_rare()
  return made
end

local function perform(write)
  written = written + 1
  enter(write.key)
  if write.kind == 'C' then
    write.version = write.there
    return
  end
  write.version = stamp .. written
  if write.role == 'w' then call('HINCRBY', tag .. 'c', 'news', 1) end
  if write.kind ~= 'U' or write.moves or not write.there then return rarely().perform_wholly(write) end
  local fields = write.fields
  if write.role == 'b' and (write.other or write.hour ~= hour) then
    rarely().mark(write.key:sub(#tag + 1), call('HGETALL', write.key), false)
    fields[#fields + 1] = HOUR
    fields[#fields + 1] = hour
  end
  fields[#fields + 1] = VERSION
  fields[#fields + 1] = write.version
  call('HSET', write.key, unpack(fields))
  if #write.removed > 0 then call('HDEL', write.key, unpack(write.removed)) end
end

-- What can be asked.

local often = {}

function often.G() return call('HGETALL', next_key()) end

function often.W()
  local group, hold, told = {}, true, {}
  at = at + 1
  for i = 1, tonumber(args[at - 1]) do
    group[i] = decide()
    hold = hold and group[i].held
  end
  local only = not group[2] and group[1]
  if hold and only and only.kind == 'U' and only.there and only.there == only.known then
    perform(only)
    return only.version  -- which is all that its writer does not know
  end
  for _, write in ipairs(group) do
    local known = write.there and write.there == write.known
    if hold then perform(write) else write.version = write.there end
    told[#told + 1] = (hold and 1 or 0) + (write.held and 2 or 0) + (known and 4 or 0)
    told[#told + 1] = write.version
    local wanted = not hold or (write.kind ~= 'P' and write.kind ~= 'D')
    told[#told + 1] = wanted and not known and call('HGETALL', write.key)
  end
  return told
end

function often.Q()
  local set, first, last, backwards, rows, partition = next_key(), unpack(args, at, at + 4)
  at = at + 5
  local page
  if backwards == '' then
    page = call('ZRANGEBYLEX', set, first, last, 'LIMIT', 0, rows)
  else
    page = call('ZREVRANGEBYLEX', set, last, first, 'LIMIT', 0, rows)
  end
  if partition == '' then return page end
  local found, stem = {}, tag .. 'i' .. #partition - 1 .. ':' .. partition:sub(2)
  for _, sort in ipairs(page) do
    found[#found + 1] = sort
    found[#found + 1] = call('HGETALL', stem .. sort)
  end
  return found
end

local answers, news = {}, {}
while args[at] do
  at = at + 1
  answers[#answers + 1] = (often[args[at - 1]] or rarely()[args[at - 1]])()
end
for _, one in ipairs(tags) do
  news[#news + 1] = one
  news[#news + 1] = call('HGET', one .. 'c', 'news') or '0'
end
return {time[1], time[2], news, answers}
