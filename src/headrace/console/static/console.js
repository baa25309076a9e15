// What htmx does not do: keys, times in the viewer's zone, copied commands, colours, charts, and whether the page is live.
(() => {
  'use strict';
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // times

  const clock = new Intl.DateTimeFormat('sv-SE', { dateStyle: 'short', timeStyle: 'medium' }); // 2026-01-31 12:00:00
  const [seconds, minutes, days] = [{ timeStyle: 'medium' }, { timeStyle: 'short' }, { dateStyle: 'short' }].map((style) => new Intl.DateTimeFormat('sv-SE', style));
  const tick = (step) => step < 60 ? seconds : step < 86400 ? minutes : days; // of a chart's axis, by the seconds between two ticks
  const tell = (element) => {
    const moment = new Date(element.dateTime);
    if (isNaN(moment)) return;
    const text = clock.format(moment);
    if (element.textContent !== text) element.textContent = text;
    element.title = element.dateTime;
  };
  const tellAll = () => all('time[datetime]').forEach(tell);

  // the state of the page's stream

  const state = one('#state');
  const says = (word, title) => {
    if (!state || !state.dataset.live) return;
    state.className = 'state ' + word.toLowerCase();
    one('span', state).textContent = word;
    state.title = title;
  };
  document.addEventListener('htmx:sse:after:connection', () => says('Live', 'This page is kept up to date'));
  const away = async () => {
    says('Away', 'The console does not answer; it is asked again');
    try { if ((await fetch('/session')).status === 401) location.reload(); } catch { /* it is away */ }
  };
  document.addEventListener('htmx:sse:error', away);
  document.addEventListener('htmx:sse:close', away);
  document.addEventListener('htmx:sse:after:message', () => {
    if (one('#not-live')) says('Away', 'This page is not kept up to date; it says why');
    else says('Live', 'This page is kept up to date');
    refresh();
  });
  document.addEventListener('htmx:after:swap', () => {
    tellAll();
    for (const list of all('[data-most]')) while (list.children.length > list.dataset.most) list.lastElementChild.remove();
  });

  // keys

  const field = one('#find');
  const found = one('#found');
  const isTyping = (target) => target.closest('input, textarea, select, [contenteditable]');
  const close = () => { found?.replaceChildren(); };
  document.addEventListener('keydown', (event) => {
    if (field && event.key === '/' && !isTyping(event.target) && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      field.focus();
      field.select();
      return;
    }
    if (!event.target.closest('.find')) return;
    const links = all('a', found);
    const at = links.indexOf(document.activeElement);
    if (event.key === 'Escape') { close(); field.value = ''; field.blur(); }
    if (event.key === 'ArrowDown' && links.length) { event.preventDefault(); links[Math.min(at + 1, links.length - 1)].focus(); }
    if (event.key === 'ArrowUp' && at >= 0) { event.preventDefault(); (at ? links[at - 1] : field).focus(); }
  });
  document.addEventListener('click', (event) => { if (found && !event.target.closest('.find')) close(); });

  // commands

  document.addEventListener('click', async (event) => {
    const button = event.target.closest('[data-copy]');
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.classList.add('done');
      setTimeout(() => button.classList.remove('done'), 1500);
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
    }
  });

  // colours

  const themes = ['', 'light', 'dark'];
  one('#theme')?.addEventListener('click', () => {
    const root = document.documentElement;
    const next = themes[(themes.indexOf(root.dataset.theme || '') + 1) % themes.length];
    if (next) root.dataset.theme = next; else delete root.dataset.theme;
    document.cookie = `theme=${next}; path=/; max-age=31536000; samesite=strict`;
    charts.forEach((chart) => chart.paint());
  });

  // forms that are sent when something in them changes

  document.addEventListener('change', (event) => {
    if (event.target.closest('form[data-eager]')) event.target.form.requestSubmit();
  });

  // charts

  const charts = [];
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = new Intl.NumberFormat(undefined, { notation: 'compact', maximumFractionDigits: 1 });
  class Chart {
    constructor(element) {
      this.element = element;
      this.data = null;
      this.plot = null;
      this.asking = false;
      this.isPast = new URL(element.dataset.chart, location.href).searchParams.has('range'); // it comes whole each time
      this.askAgain = 0;
      new ResizeObserver(() => this.plot?.setSize(this.size())).observe(element);
    }
    size() { return { width: Math.max(200, this.element.clientWidth), height: Math.max(120, this.element.clientHeight - 48) }; }
    async ask() {
      if (this.asking || document.hidden || Date.now() < this.askAgain) return;
      this.asking = true;
      try {
        const address = new URL(this.element.dataset.chart, location.href);
        const times = this.data?.[0];
        if (times?.length && !this.isPast) address.searchParams.set('since', times[times.length - 1]);
        const answer = await (await fetch(address)).json();
        if (this.isPast) this.whole(answer); else this.more(answer);
      } catch { /* the state of the page says so */ } finally { this.asking = false; }
    }
    more(answer) {
      this.names = answer.names;
      const old = this.data;
      this.data = old ? old.map((column, at) => column.concat(answer.data[at])) : answer.data;
      const from = Date.now() / 1000 - 3600;
      const gone = this.data[0].findIndex((time) => time >= from);
      if (gone > 0) this.data = this.data.map((column) => column.slice(gone));
      if (this.plot) this.plot.setData(this.data); else this.paint();
    }
    whole(answer) {
      this.askAgain = Date.now() + 30000;
      this.names = answer.names;
      this.data = answer.data;
      const note = this.element.nextElementSibling;
      note.textContent = answer.instead ?? '';
      note.hidden = !answer.instead;
      this.paint();
    }
    paint() {
      if (!this.data || typeof uPlot === 'undefined') return;
      this.plot?.destroy();
      this.element.replaceChildren();
      if (!this.data[0].length) { this.element.textContent = 'The first points are on their way.'; this.plot = null; return; }
      const axis = { stroke: colour('--muted'), grid: { stroke: colour('--line'), width: 1 }, ticks: { show: false }, font: '12px system-ui' };
      this.plot = new uPlot({
        ...this.size(),
        legend: { live: true },
        cursor: { y: false, points: { size: 6 } },
        scales: { x: { range: (_, low, high) => this.data[0].length < 2 ? [this.data[0][0] - 300, this.data[0][0]] : [Math.min(low, high - 300), high] }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
        series: [{ label: 'time', value: (_, at) => at == null ? '–' : clock.format(new Date(at * 1000)) }, ...this.names.map((name, at) => ({
          label: name,
          stroke: colour(at ? '--second' : '--accent'),
          fill: at ? undefined : colour('--wash'),
          width: 1.5,
          dash: at ? [6, 4] : undefined,
          points: { show: this.data[0].length < 2 },
          value: (_, value) => value == null ? '–' : Math.round(value).toLocaleString(),
        }))],
        axes: [{ ...axis, space: 80, values: (_, times, __, ___, step) => times.map((at) => tick(step).format(new Date(at * 1000))) }, { ...axis, size: 52, values: (_, values) => values.map((value) => short.format(value)) }],
      }, this.data, this.element);
    }
  }
  const refresh = () => charts.forEach((chart) => chart.ask());
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => charts.forEach((chart) => chart.paint()));

  // a page's begin

  tellAll();
  says('Joining', 'The page asks to be kept up to date');
  for (const element of all('[data-chart]')) {
    const chart = new Chart(element);
    charts.push(chart);
    chart.ask();
  }
})();
