'use strict';
(() => {
  const root = document.documentElement;
  const byId = id => document.getElementById(id);
  const POLL_MS = 1000;
  const FINE_POINTS = 600, COARSE_POINTS = 1440;

  // ---------------------------------------------------------------- elements

  const SVG = 'http://www.w3.org/2000/svg';
  /** Makes an element: `tag.class.class`, attributes, children. Texts are texts, never markup. */
  function make(space, name, attributes, children) {
    const [tag, ...classes] = name.split('.');
    const element = space ? document.createElementNS(SVG, tag) : document.createElement(tag);
    if (classes.length) element.setAttribute('class', classes.join(' '));
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key === 'style') element.style.cssText = value;
      else if (key === 'click') element.onclick = value;
      else element.setAttribute(key, value === true ? '' : value);
    }
    element.append(...children.flat(3).filter(child => child !== null && child !== undefined && child !== ''));
    return element;
  }
  const h = (name, attributes, ...children) => make(false, name, attributes, children);
  const s = (name, attributes, ...children) => make(true, name, attributes, children);

  /** Makes `old` like `fresh`, and keeps the nodes that are alike: a selection or a focus stays. */
  function morph(old, fresh) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
    if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return undefined;
    }
    if (old.dataset && old.dataset.own && old.dataset.own === fresh.dataset.own) return undefined;
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) {
      if (name === 'style') { if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText; }
      else if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    if (fresh.onclick) old.onclick = fresh.onclick;
    morphChildren(old, [...fresh.childNodes]);
    return undefined;
  }
  function morphChildren(parent, fresh) {
    while (parent.childNodes.length > fresh.length) parent.lastChild.remove();
    fresh.forEach((child, at) => {
      if (at < parent.childNodes.length) morph(parent.childNodes[at], child);
      else parent.append(child);
    });
  }

  // ---------------------------------------------------------------- numbers

  function bytes(value) {
    const units = ['B', 'K', 'M', 'G', 'T', 'P'];
    let at = 0;
    let number = Math.abs(value);
    while (number >= 1024 && at < units.length - 1) { number /= 1024; at += 1; }
    const digits = at === 0 || number >= 100 ? 0 : number >= 10 ? 1 : 2;
    return `${Number(number.toFixed(digits))} ${at === 0 ? 'B' : units[at] + 'iB'}`;
  }
  function count(value) {
    if (value >= 1e6) return (value / 1e6).toFixed(value >= 1e7 ? 1 : 2) + ' M';
    if (value >= 1e4) return (value / 1e3).toFixed(1) + ' k';
    return value >= 10 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
  }
  function micros(value) {
    if (value === null || value === undefined) return '–';
    if (value >= 1e6) return (value / 1e6).toFixed(2) + ' s';
    if (value >= 1e3) return (value / 1e3).toFixed(value >= 1e5 ? 0 : value >= 1e4 ? 1 : 2) + ' ms';
    return value.toFixed(value >= 100 ? 0 : 1) + ' µs';
  }
  const perSecond = value => bytes(value) + '/s';
  const percent = (part, whole) => whole > 0 ? Math.min(100, part * 100 / whole) : 0;
  const shown = value => value.toFixed(value >= 10 || value === 0 ? 0 : 1) + ' %';
  /** The two largest units, as in `5 d 3 h`. */
  function span(secs) {
    const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
    const first = Math.max(0, units.findIndex(([unit]) => secs >= unit));
    const parts = units.slice(first, first + 2).map(([unit, name]) => {
      const whole = Math.floor(secs / unit);
      secs -= whole * unit;
      return whole ? `${whole} ${name}` : '';
    });
    return parts.filter(Boolean).join(' ') || '0 s';
  }
  const two = number => String(number).padStart(2, '0');
  function clock(secs, seconds) {
    const at = new Date(secs * 1000);
    return `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? ':' + two(at.getSeconds()) : ''}`;
  }
  function day(secs) {
    const at = new Date(secs * 1000);
    return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(secs, true)}`;
  }
  const shortName = path => path.split('/').filter(Boolean).pop() || path;
  /** What tells devices apart is the end of a long name. */
  const ending = path => shortName(path).length > 12 ? '…' + shortName(path).slice(-10) : shortName(path);
  const GRAVE = ['FAULTED', 'SUSPENDED', 'UNAVAIL'];
  const grade = state => state === 'ONLINE' || state === 'AVAIL' ? '' : GRAVE.includes(state) ? 'bad' : 'warn';
  const classed = (name, state) => grade(state) ? `${name}.${grade(state)}` : name;

  // ---------------------------------------------------------------- what is known

  let token = sessionStorage.getItem('forebay-token') || '';
  const given = /[#&]token=([^&]+)/.exec(location.hash);
  if (given) {
    token = decodeURIComponent(given[1]);
    sessionStorage.setItem('forebay-token', token);
    history.replaceState(null, '', location.pathname);
  }
  let state = null;
  let before = null;
  let chosen = null;
  let isLong = false;
  /** Points by the pool's id. */
  const points = new Map();
  let lastPoint = 0;

  function remember(fresh) {
    const index = Object.fromEntries(fresh.fields.map((field, at) => [field, at]));
    const named = row => Object.fromEntries(Object.entries(index).map(([field, at]) => [field, row[at]]));
    const ids = new Set();
    for (const { view, fine, coarse } of fresh.pools) {
      const id = String(view.status.guid);
      ids.add(id);
      const known = points.get(id) || { fine: [], coarse: [] };
      const add = (rows, more, most) => {
        const last = rows.length ? rows[rows.length - 1].time : 0;
        return rows.concat(more.map(named).filter(row => row.time > last)).slice(-most);
      };
      known.fine = add(known.fine, fine, FINE_POINTS);
      known.coarse = add(known.coarse, coarse, COARSE_POINTS);
      points.set(id, known);
      for (const row of fine) lastPoint = Math.max(lastPoint, row[index.time]);
    }
    for (const id of points.keys()) if (!ids.has(id)) points.delete(id);
    before = state;
    state = fresh;
  }

  // ---------------------------------------------------------------- charts

  const ticks = (most, steps) => {
    const rough = most / steps;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= rough);
    return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, at) => at * step);
  };
  const byteTicks = (most, steps) => {
    const step = 2 ** Math.ceil(Math.log2(most / steps));
    return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, at) => at * step);
  };

  /** Draws `chart` into its figure. `hover`: the time under the pointer. */
  function draw(figure, chart, hover) {
    const svg = figure.querySelector('svg');
    const width = Math.max(220, svg.clientWidth || 480), height = 190;
    const left = 70, right = 8, top = 8, bottom = 20;
    const rows = chart.rows;
    const end = rows.length ? rows[rows.length - 1].time : state.server.time_secs;
    const start = end - chart.seconds;
    const x = time => left + (time - start) / chart.seconds * (width - left - right);
    const values = rows.flatMap(row => chart.stacked
      ? [chart.series.reduce((sum, { of }) => sum + of(row), 0)] : chart.series.map(({ of }) => of(row)));
    const present = values.filter(value => value !== null && value > 0);
    const most = Math.max(chart.least, ...present) * 1.08;
    const low = chart.log ? 10 ** Math.floor(Math.log10(Math.max(1, Math.min(most / 10, ...present)))) : 0;
    const high = chart.log ? Math.max(most, low * 10) : most;
    const share = value => chart.log ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : value / high;
    const y = value => height - bottom - share(value) * (height - top - bottom);
    const lines = chart.log
      ? Array.from({ length: 9 }, (_, at) => low * 10 ** at).filter(value => value <= high)
      : (chart.isBytes ? byteTicks : ticks)(most, 4);
    const parts = lines.map(value => [
      s('line.grid', { x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      s('text', { x: left - 6, y: y(value) + 4, 'text-anchor': 'end' }, chart.show(value)),
    ]);
    const every = chart.seconds / (width > 420 ? 6 : 4);
    const step = [60, 120, 180, 300, 3600, 7200, 14400, 18000, 28800].find(n => n >= every) || 28800;
    const zone = new Date(end * 1000).getTimezoneOffset() * 60;
    for (let time = Math.ceil((start - zone) / step) * step + zone; time <= end; time += step) {
      const edge = x(time) > width - right - 14 ? 'end' : 'middle';
      if (x(time) >= left + 8) parts.push(s('text', { x: x(time), y: height - 4, 'text-anchor': edge }, clock(time)));
    }
    const gap = chart.gap;
    const floor = new Array(rows.length).fill(0);
    chart.series.forEach(({ of, style, faint }) => {
      let path = '', shadow = '', run = [];
      const close = () => {
        if (chart.stacked && run.length > 1) {
          shadow += 'M' + run.map(([px, , upper]) => `${px},${upper}`).join('L') + 'L' +
            run.slice().reverse().map(([px, lower]) => `${px},${lower}`).join('L') + 'Z';
        } else if (run.length === 1) path += `M${run[0][0] - 1},${run[0][2]}h2`;
        else if (run.length) path += 'M' + run.map(([px, , upper]) => `${px},${upper}`).join('L');
        run = [];
      };
      rows.forEach((row, at) => {
        const value = of(row);
        if (value === null || (at && row.time - rows[at - 1].time > gap)) close();
        if (value === null) return;
        const under = chart.stacked ? floor[at] : 0;
        if (chart.stacked) floor[at] += value;
        run.push([x(row.time).toFixed(1), y(under).toFixed(1), y(under + value).toFixed(1)]);
      });
      close();
      if (shadow) parts.push(s(`path.area.${style}`, { d: shadow }));
      if (path) parts.push(s(`path.series.${style}${faint ? '.faint' : ''}`, { d: path }));
    });
    const near = hover === null ? rows[rows.length - 1] : rows.reduce((best, row) =>
      !best || Math.abs(row.time - hover) < Math.abs(best.time - hover) ? row : best, null);
    if (hover !== null && near) {
      parts.push(s('line.cursor', { x1: x(near.time), x2: x(near.time), y1: top, y2: height - bottom }));
    }
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    svg.replaceChildren(...parts.flat());
    const items = chart.series.map(({ name, of, style }) => h('li', null, h(`i.${style}`),
      name + ' ', h('b', null, near && of(near) !== null ? chart.show(of(near)) : '–')));
    const when = hover !== null && near ? [h('li', null, clock(near.time, true))] : [];
    morphChildren(figure.querySelector('ul'), [...items, ...when]);
    figure.chart = { ...chart, start, left, right, width };
  }

  function chartFigure(id, title) {
    const svg = s('svg', { role: 'img', 'aria-label': title });
    const figure = h('div.panel.chart', { 'data-own': id }, h('h3', null, title), h('ul.legend'), svg);
    svg.addEventListener('pointermove', event => {
      const { start, left, right, width, seconds } = figure.chart;
      const at = (event.offsetX - left) / (width - left - right);
      draw(figure, figure.chart, start + Math.max(0, Math.min(1, at)) * seconds);
      figure.isHeld = true;
    });
    svg.addEventListener('pointerleave', () => { figure.isHeld = false; draw(figure, figure.chart, null); });
    return figure;
  }

  const field = name => row => row[name];
  const line = (name, key, style, faint) => ({ name, of: field(key), style, faint });
  const CHARTS = [
    { id: 'bytes', title: 'Throughput of clients', isBytes: true, show: perSecond, least: 4096,
      series: [line('read', 'read_bytes', 's3'), line('write', 'write_bytes', 's1')] },
    { id: 'operations', title: 'Operations a second', show: count, least: 4,
      series: [line('read', 'reads', 's3'), line('write', 'writes', 's1'), line('of them durable', 'durable', 's2'), line('flush', 'flushes', 's4')] },
    { id: 'writes', title: 'Latency of durable writes and flushes', log: true, show: micros, least: 100,
      series: [line('write p50', 'durable_p50', 's2'), line('write p99', 'durable_p99', 's2', true),
        line('flush p50', 'flush_p50', 's4'), line('flush p99', 'flush_p99', 's4', true)] },
    { id: 'reads', title: 'Latency of reads', log: true, show: micros, least: 100,
      series: [line('p50', 'read_p50', 's3'), line('p99', 'read_p99', 's3', true)] },
    { id: 'media', title: 'What goes to the devices', isBytes: true, stacked: true, show: perSecond, least: 4096,
      series: [line('log', 'log_bytes', 's2'), line('data', 'data_bytes', 's1'), line('parity', 'parity_bytes', 's3'),
        line('cleaning', 'cleaning_bytes', 's4'), line('other', 'other_bytes', 's5')] },
    { id: 'waiting', title: 'Waiting for the main store', isBytes: true, show: bytes, least: 4096,
      series: [line('in memory', 'dirty', 's1'), line('in the log', 'log_used', 's2')] },
  ];

  // ---------------------------------------------------------------- a pool

  const leaves = vdev => vdev.children.length ? vdev.children.flatMap(leaves) : [vdev];
  const NOTES = { resilvering: 'being rebuilt', awaiting_resilver: 'to be rebuilt', too_many_errors: 'too many errors',
    missing: 'missing', no_permission: 'no permission', no_answer: 'no answer', in_use: 'in use elsewhere',
    no_label: 'no label', failed_earlier: 'failed earlier', returned: 'is back' };
  const noteText = note => note ? NOTES[note] || (note.other_pool ? `of pool ${note.other_pool.name}` : note.not_opened ? note.not_opened.error : '') : '';
  const MAIN = ['data_bytes', 'parity_bytes', 'cleaning_bytes', 'other_bytes'];
  const sum = (row, keys) => keys.reduce((all, key) => all + row[key], 0);
  const bar = (value, limits) => h('div.bar', null, h(`i${value >= limits[1] ? '.bad' : value >= limits[0] ? '.warn' : ''}`, { style: `width:${value.toFixed(1)}%` }));
  const caption = (left, right) => h('p.caption', null, h('span', null, left), h('span', null, right));

  /** Counts of each device since the last answer, for a second. */
  function deviceRates(view) {
    const rates = new Map();
    const old = before && before.pools.find(pool => pool.view.status.guid === view.status.guid);
    if (!old) return rates;
    const secs = view.stats.uptime_secs - old.view.stats.uptime_secs;
    if (secs <= 0) return rates;
    for (const [name, io] of Object.entries(view.stats.devices)) {
      const was = old.view.stats.devices[name];
      if (!was) continue;
      const rate = key => Math.max(0, io[key] - was[key]) / secs;
      rates.set(name, { ops: rate('reads') + rate('writes'), read: rate('read_bytes'), write: rate('write_bytes') });
    }
    const misses = view.stats.cache.misses - old.view.stats.cache.misses;
    rates.set('', { read: Math.max(0, misses) * 4096 / secs });
    return rates;
  }

  function pipe(area, rate, text, way, kind) {
    const thick = rate > 0 ? Math.max(2, Math.min(9, Math.log2(rate / 2048) * .6)) : 2;
    return h(`div.pipe.${area}.${kind}${way === 'left' ? '.left' : ''}${rate > 0 ? '' : '.idle'}`, null,
      h('b', null, perSecond(rate)), h('div.way', { 'aria-hidden': 'true' },
        h('div.shaft', { style: `--thick:${thick.toFixed(1)}px` }), h('div.tip')), h('span', null, text));
  }

  function deviceBox(vdev, rates) {
    const rate = rates.get(vdev.name);
    const trouble = vdev.state !== 'ONLINE' ? vdev.state : noteText(vdev.note);
    const line = trouble || (rate && rate.ops >= 1 ? perSecond(rate.read + rate.write) : bytes(vdev.size_bytes));
    const level = grade(vdev.state) || (vdev.note ? 'warn' : '');
    return h(`div.device${level ? '.' + level : ''}`, { title: `${vdev.name}: ${vdev.state} ${noteText(vdev.note)}` },
      h('b', null, ending(vdev.name)), h('span', null, line));
  }

  function groupBox(vdev, rates) {
    const devices = leaves(vdev);
    const isSingle = vdev.children.length === 0;
    const space = vdev.space;
    const used = space && space.raw_alloc_bytes !== null ? percent(space.raw_alloc_bytes, space.raw_size_bytes) : null;
    return h('div.group', null,
      h('div', null, h(classed('span.dot', vdev.state)), h('b', null, isSingle ? 'single' : vdev.name),
        h('span.small', null, used === null ? vdev.state : shown(used))),
      used === null ? '' : bar(used, [80, 95]),
      h('div.devices', null, devices.map(device => deviceBox(device, rates))));
  }

  function flow(view, row, rates) {
    const { status, stats, volumes } = view;
    const hits = stats.cache.hits, misses = stats.cache.misses;
    const logUsed = percent(stats.log_used_bytes, stats.log_capacity_bytes);
    const dirty = percent(stats.dirty_bytes, stats.dirty_limit_bytes);
    const logs = status.logs.flatMap(leaves);
    const { clients } = state.server;
    return h('section.panel', { 'aria-label': 'What flows through the pool' }, h('div.flow', null,
      h('div.box.a-clients', null, h('h3', null, 'Clients'), h('p.big', null, String(clients)),
        h('p.small', null, `connected to ${state.pools.length === 1 ? `${volumes.length} volume${volumes.length === 1 ? '' : 's'}` : 'all pools'}`)),
      pipe('a-p1', row ? row.log_bytes : 0, 'to the log', 'right', 'p-log'),
      pipe('a-p2', row ? row.write_bytes : 0, 'writes', 'right', 'p-write'),
      pipe('a-p3', row ? row.read_bytes : 0, 'reads', 'left', 'p-read'),
      h('div.box.a-log', null, h('h3', null, 'Log'), logs.length
        ? h('div.devices', null, logs.map(device => deviceBox(device, rates))) : h('p.small', null, 'lies on the main store'),
      bar(logUsed, [70, 90]), caption(`${shown(logUsed)} in use`, bytes(stats.log_capacity_bytes))),
      h('div.box.a-mem', null, h('h3', null, 'Memory'), bar(dirty, [70, 95]),
        caption(`${bytes(stats.dirty_bytes)} to be stored`, `limit ${bytes(stats.dirty_limit_bytes)}`)),
      h('div.box.a-cache', null, h('h3', null, 'Read cache'),
        h('p.small', null, hits + misses ? `${bytes(stats.cache.used_bytes)}; ${shown(percent(hits, hits + misses))} of blocks found` : 'not used yet'),
        status.caches && status.caches.length ? h('div.devices', null, status.caches.flatMap(leaves).map(device => deviceBox(device, rates))) : ''),
      pipe('a-p4', row ? sum(row, MAIN) : 0, 'full stripes', 'right', 'p-write'),
      pipe('a-p5', rates.get('') ? rates.get('').read : 0, 'not in memory', 'left', 'p-read'),
      h('div.box.a-store', null, h('h3', null, 'Main store'), status.groups.map(group => groupBox(group, rates)),
        status.spares && status.spares.length ? h('p.small', null, 'Spares: ' + status.spares.map(spare => `${shortName(spare.name)} (${spare.state})`).join(', ')) : '',
        caption(`segments: ${count(stats.segments.free)} free of ${count(stats.segments.free + stats.segments.open + stats.segments.full)}`,
          `${count(stats.since_import.segments_cleaned)} cleaned`))));
  }

  const tile = (title, value, below) => h('div.panel.tile', null, h('h3', null, title), h('p.big', null, value), h('p.small', null, below));

  function tiles(view, fine) {
    const { stats } = view;
    const last = fine[fine.length - 1];
    const recent = fine.slice(-60);
    const total = keys => recent.reduce((all, row) => all + sum(row, keys), 0);
    const written = total(['write_bytes']);
    const cleaned = percent(total(['cleaning_bytes']), total(MAIN));
    return h('section.tiles', { 'aria-label': 'Figures' },
      tile('Writes', count(last ? last.writes : 0) + '/s', perSecond(last ? last.write_bytes : 0)),
      tile('Reads', count(last ? last.reads : 0) + '/s', perSecond(last ? last.read_bytes : 0)),
      tile('Durable write', micros(stats.fua_latency.count ? stats.fua_latency.p50_us : null), `median; p99 ${micros(stats.fua_latency.count ? stats.fua_latency.p99_us : null)}`),
      tile('Read', micros(stats.read_latency.count ? stats.read_latency.p50_us : null), `median; p99 ${micros(stats.read_latency.count ? stats.read_latency.p99_us : null)}`),
      tile('Write amplification', stats.write_amplification ? stats.write_amplification.toFixed(2) : '–',
        written ? `${(total(MAIN) / written).toFixed(2)} in the last minute` : 'since the import'),
      tile('Cleaning', shown(cleaned), 'of the last minute\'s writes'));
  }

  function scanText(scan) {
    if (!scan) return 'never scrubbed';
    const kind = scan.kind.toLowerCase();
    const word = String(scan.state).toLowerCase();
    if (word.includes('progress')) return `${kind}: ${shown(percent(scan.done_bytes, scan.total_bytes))} done, ${bytes(scan.repaired_bytes)} repaired`;
    return `${kind} ${word} ${day(scan.started_at + scan.elapsed_secs)}, ${scan.errors} errors`;
  }

  const table = (title, heads, rows, empty) => h('section.panel', null, h('h3', null, title), rows.length
    ? h('div.scroll', null, h('table', null, h('thead', null, h('tr', null, heads.map(head => h(`th${head.startsWith('>') ? '.n' : ''}`, { scope: 'col' }, head.replace('>', ''))))), h('tbody', null, rows)))
    : h('p.small', null, empty));

  function devices(view, rates) {
    const { status } = view;
    const row = part => vdev => {
      const rate = rates.get(vdev.name) || { ops: 0, read: 0, write: 0 };
      const errors = vdev.read_errors + vdev.write_errors + vdev.checksum_errors;
      const health = (status.drives && status.drives[vdev.name] && status.drives[vdev.name].health) || {};
      return h('tr', null, h('th', { scope: 'row' }, vdev.name), h('td', null, part),
        h(classed('td.state', vdev.state), null, vdev.state + (vdev.note ? `, ${noteText(vdev.note)}` : '')),
        h('td.n', null, bytes(vdev.size_bytes)), h('td.n', null, count(rate.ops)), h('td.n', null, perSecond(rate.read)),
        h('td.n', null, perSecond(rate.write)), h(`td.n${errors ? '.state.bad' : ''}`, null, count(errors)),
        h('td.n', null, health.temperature_c ? `${health.temperature_c.toFixed(0)} °C` : '–'),
        h('td.n', null, health.used_percent !== undefined && health.used_percent !== null ? `${health.used_percent.toFixed(0)} %` : '–'));
    };
    const list = (part, vdevs) => (vdevs || []).flatMap(leaves).map(row(part));
    const rows = [...list('data', status.groups), ...list('log', status.logs), ...list('cache', status.caches)];
    return table('Devices', ['Device', 'Part', 'State', '>Size', '>Operations/s', '>Read', '>Written', '>Errors', '>Temperature', '>Wear'], rows, '');
  }

  const volumes = view => table('Volumes', ['Volume', '>Size', '>Used', '>Held by snapshots', '>Reserved', 'Sync'],
    view.volumes.map(volume => h('tr', null, h('th', { scope: 'row' }, volume.name), h('td.n', null, bytes(volume.size_bytes)),
      h('td.n', null, bytes(volume.used_bytes)), h('td.n', null, bytes(volume.used_by_snapshots_bytes)),
      h('td.n', null, bytes(volume.reserved_bytes)), h('td', null, volume.sync))),
    'No volume yet: \'forebay volume create -V 8G ' + view.status.name + '/vol0\' makes one.');

  const events = view => table('Events', ['Time', 'Event', 'What happened'],
    view.events.slice().reverse().map(event => h('tr', null, h('td.time', null, day(event.time_secs)), h('td.state', null, event.event),
      h('td.text', null, event.text, event.action ? h('div.small', null, event.action) : ''))),
    'Nothing since the import.');

  function poolSection(pool, figures) {
    const { view } = pool;
    const { status, summary } = view;
    const known = points.get(String(status.guid));
    const rates = deviceRates(view);
    const used = percent(summary.alloc_bytes, summary.size_bytes);
    const level = grade(status.state);
    const range = (text, long) => h('button', { type: 'button', 'aria-pressed': String(isLong === long), click: () => { isLong = long; render(); } }, text);
    return [
      h('div.head', null, h('h2', null, status.name), h(`span.badge${level ? '.' + level : ''}`, null, status.state),
        h('span.small', null, `up ${span(Math.floor(view.stats.uptime_secs))}; ${scanText(status.scan)}`),
        h('div.space', null, bar(used, [80, 95]), caption(`${bytes(summary.alloc_bytes)} of ${bytes(summary.size_bytes)} used`, `${bytes(summary.available_bytes)} available`))),
      status.status ? h(`div.panel.advice${level === 'bad' || status.lost_count ? '.bad' : ''}`, { role: 'alert' }, h('p', null, h('b', null, status.status)), h('p', null, status.action)) : '',
      flow(view, known.fine[known.fine.length - 1], rates),
      tiles(view, known.fine),
      h('div.tabs', null, h('h3', null, 'Over time'), range('10 minutes', false), range('24 hours', true)),
      h('div.charts', null, figures),
      devices(view, rates), volumes(view), events(view),
    ];
  }

  // ---------------------------------------------------------------- the page

  let figures = [];
  let figuresOf = null;

  function note(title, ...text) {
    morphChildren(byId('main'), [h('div.note', null, h('h2', null, title), ...text)]);
    figuresOf = null;
  }

  function render() {
    if (!state) return;
    const { server, pools } = state;
    byId('server').textContent = `version ${server.version}, process ${server.pid}, up ${span(server.uptime_secs)}`;
    if (!pools.length) {
      morphChildren(byId('pools'), []);
      note('No pool is served', h('p', null, 'Pools are shown here as soon as they are created or imported:'),
        h('p', null, h('code', null, 'forebay pool create tank raidz1 DEV DEV DEV DEV log mirror DEV DEV')));
      return;
    }
    const pool = pools.find(({ view }) => view.status.name === chosen) || pools[0];
    const { status } = pool.view;
    document.title = `${status.name}: ${status.state} – Forebay`;
    morphChildren(byId('pools'), pools.length < 2 ? [] : pools.map(({ view }) => h('button', { type: 'button', 'aria-pressed': String(view === pool.view),
      click: () => { chosen = view.status.name; render(); } }, h(classed('span.dot', view.status.state)), view.status.name)));
    const id = `${status.guid}`;
    if (figuresOf !== id) {
      figures = CHARTS.map(chart => chartFigure(`${id}-${chart.id}`, chart.title));
      figuresOf = id;
      byId('main').replaceChildren(h('section.pool', null, poolSection(pool, figures)));
    } else {
      // The charts stay where they are: only their places are compared.
      const places = CHARTS.map(chart => h('div.panel.chart', { 'data-own': `${id}-${chart.id}` }));
      morph(byId('main').firstChild, h('section.pool', null, poolSection(pool, places)));
    }
    const known = points.get(id);
    const shown = [...byId('main').querySelectorAll('.chart')];
    shown.forEach((figure, at) => {
      const rows = isLong ? known.coarse : known.fine;
      const seconds = isLong ? 86400 : 600;
      if (!figure.isHeld) draw(figure, { ...CHARTS[at], rows, seconds, gap: isLong ? 150 : 5 }, null);
    });
  }

  function askForToken() {
    if (byId('token')) return;
    const input = h('input', { id: 'token', type: 'password', autocomplete: 'off', 'aria-label': 'Token' });
    const form = h('form', null, input, h('button', { type: 'submit' }, 'Show'));
    form.addEventListener('submit', event => {
      event.preventDefault();
      token = input.value.trim();
      sessionStorage.setItem('forebay-token', token);
      input.value = '';
      poll();
    });
    morphChildren(byId('main'), []);
    byId('main').append(h('div.note', null, h('h2', null, 'This page needs a token'),
      h('p', null, 'It is in the file that the server was given with --web-token.'), form));
    figuresOf = null;
    input.focus();
  }

  let timer = null;
  let answeredAt = 0;
  let isAsking = false;
  async function poll() {
    clearTimeout(timer);
    if (isAsking) return;
    isAsking = true;
    await ask();
    isAsking = false;
  }
  async function ask() {
    const live = byId('live');
    try {
      const headers = token ? { Authorization: `Bearer ${token}` } : {};
      const answer = await fetch(`state.json?after=${lastPoint}`, { headers, cache: 'no-store', signal: AbortSignal.timeout(10000) });
      if (answer.status === 401) {
        live.className = 'lost';
        live.textContent = 'no token';
        askForToken();
        return;
      }
      if (!answer.ok) throw new Error(`answer ${answer.status}`);
      remember(await answer.json());
      answeredAt = Date.now();
      live.className = '';
      live.textContent = 'live';
    } catch (error) {
      live.className = 'lost';
      live.textContent = answeredAt ? `no answer since ${clock(answeredAt / 1000, true)}` : 'no answer';
    }
    render();
    timer = setTimeout(poll, document.hidden ? 5 * POLL_MS : POLL_MS);
  }

  function theme(name) {
    root.dataset.theme = name;
    byId('theme').textContent = name === 'dark' ? 'Light' : 'Dark';
  }
  const system = matchMedia('(prefers-color-scheme: dark)');
  const asked = /[#&]theme=(dark|light)/.exec(location.hash);
  theme(asked ? asked[1] : system.matches ? 'dark' : 'light');
  system.addEventListener('change', event => theme(event.matches ? 'dark' : 'light'));
  byId('theme').addEventListener('click', () => theme(root.dataset.theme === 'dark' ? 'light' : 'dark'));
  addEventListener('resize', render);
  document.addEventListener('visibilitychange', () => { if (!document.hidden) poll(); });
  poll();
})();
