"""The report's pages: one style, two templates, nothing loaded."""

STYLE = """
:root { color-scheme: light dark; --page: #fbfaf7; --card: #ffffff; --text: #1d2329; --soft: #5b6570; --line: #dcdfe3;
  --accent: #0b5cad; --good: #14693a; --good-back: #e2f3e8; --bad: #9c1c1c; --bad-back: #fbe6e4; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1c2126; --text: #e3e6e8; --soft: #9aa4ad;
  --line: #343b42; --accent: #7db8f5; --good: #86d9a5; --good-back: #173524; --bad: #f5a29b; --bad-back: #431e1c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: .5rem 0 1rem; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 1.6rem 0 .5rem; }
h3 { font-size: 1.1rem; margin: 1.4rem 0 .4rem; }
a { color: var(--accent); }
p, ul, ol { margin: .6rem 0; }
code, pre, .mono { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .88em; }
pre { overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; margin: .6rem 0; }
table { border-collapse: collapse; font-size: .93rem; margin: .6rem 0; }
th, td { text-align: left; vertical-align: top; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); }
td { overflow-wrap: anywhere; }
th { font-weight: 600; }
.soft { color: var(--soft); }
.run, .toc { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; margin: 1.5rem 0;
  padding: .4rem 1.4rem 1.2rem; }
.toc { padding: .8rem 1.4rem; }
.toc table { width: 100%; margin: 0; }
.toc tr:last-child > * { border-bottom: 0; }
.chip { display: inline-block; padding: 0 .55rem; border-radius: 1rem; font-size: .82rem; font-weight: 600;
  white-space: nowrap; }
.chip { color: var(--bad); background: var(--bad-back); }
.chip.ok { color: var(--good); background: var(--good-back); }
.error { color: var(--bad); background: var(--bad-back); border-radius: .4rem; padding: .6rem .9rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.answer { border-left: .25rem solid var(--accent); padding-left: 1rem; margin: .8rem 0; }
.answer table, .notebook table { display: block; width: max-content; max-width: 100%; overflow-x: auto; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 0 2.5rem; }
figure { margin: 1rem 0; }
/* Figures and tables are drawn for white paper; on a dark page they keep it. */
.paper { background: #ffffff; color: #1d2329; color-scheme: light; border-radius: .4rem; padding: .5rem; }
img { max-width: 100%; height: auto; }
"""

NOTEBOOK_STYLE = """
.notebook .output_html, .notebook .output_png, .notebook .output_svg, .notebook .output_jpeg {
  background: #ffffff; color: #1d2329; color-scheme: light; --line: #dcdfe3; border-radius: .4rem; padding: .3rem .6rem;
  overflow-x: auto; margin: .6rem 0; }
.notebook .output_stderr pre { color: var(--soft); }
.notebook .anchor-link { display: none; }
.notebook .output_error pre { background: var(--bad-back); border-radius: .4rem; padding: .6rem .9rem; }
.ansi-red-fg, .ansi-red-intense-fg { color: var(--bad); }
.ansi-green-fg, .ansi-green-intense-fg { color: var(--good); }
.ansi-blue-fg, .ansi-cyan-fg, .ansi-blue-intense-fg, .ansi-cyan-intense-fg { color: var(--accent); }
.ansi-bold { font-weight: bold; }
"""

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{{ title }}</title>
<style>{{ style }}</style>
</head>
<body>
<main>
"""

INDEX = (
    _HEAD
    + """<h1>{{ title }}</h1>
<p class="soft">{{ date }}. {{ runs | length }} {{ "run" if runs | length == 1 else "runs" }} in
{{ "%.0f" | format(seconds) }} s{% if num_failed %}, <strong>{{ num_failed }} not ok</strong>{% endif %}.
Everything on these pages is in these files.</p>
<nav class="toc" aria-label="Runs"><table>
{% for run in runs %}<tr><td><a href="#{{ run.name }}">{{ run.title }}</a>
{%- if run.suffix %} <span class="soft">{{ run.suffix }}</span>{% endif %}</td>
<td><span class="chip {{ run.status }}">{{ run.status }}</span></td><td class="soft">{{ run.time }}</td></tr>
{% endfor %}</table></nav>
{% for run in runs %}<section class="run" id="{{ run.name }}">
<h2>{{ run.title }}</h2>
<p class="soft"><span class="chip {{ run.status }}">{{ run.status }}</span> {{ run.name }}, {{ run.time }}
{%- if run.page %} &middot; <a href="{{ run.page }}">full page</a>{% endif %}</p>
{% if run.error %}<div class="error">{{ run.error }}</div>{% endif %}
{% if run.answer %}<div class="answer">{{ run.answer }}</div>
{% elif run.ok %}<p class="soft">This notebook gives no answer.</p>{% endif %}
{% if run.figure %}<figure><img class="paper" src="{{ run.figure }}" alt="{{ run.figure_alt }}"></figure>{% endif %}
<div class="columns">
<div><h3>Parameters</h3>
{% if run.parameters %}<table>{% for row in run.parameters %}
<tr><th class="mono" title="{{ row.meaning }}">{{ row.name }}</th>
<td class="mono">{% if row.given %}<strong>{{ row.value }}</strong>{% else %}{{ row.value }}{% endif %}</td></tr>
{% endfor %}</table>
<p class="soft">Bold values were given for this run; the others are the notebook's own.</p>
{% else %}<p class="soft">None.</p>{% endif %}</div>
<div><h3>Facts</h3>
{% if run.facts %}<table>{% for name, value in run.facts %}
<tr><th class="mono">{{ name }}</th><td class="mono">{{ value }}</td></tr>{% endfor %}</table>
{% else %}<p class="soft">None recorded.</p>{% endif %}</div>
</div>
</section>
{% endfor %}<section class="run">
<h2>How this was made</h2>
<div class="columns">
<div><h3>Versions</h3><table>{% for name, value in versions %}
<tr><th>{{ name }}</th><td>{{ value }}</td></tr>{% endfor %}</table></div>
<div><h3>Machine</h3><table>{% for name, value in machine %}
<tr><th>{{ name }}</th><td>{{ value }}</td></tr>{% endfor %}</table></div>
</div>
<h3>Command</h3><pre>{{ command }}</pre>
</section>
</main>
</body>
</html>
"""
)

PAGE = (
    _HEAD
    + """<p><a href="index.html#{{ name }}">&larr; Report</a></p>
<p class="soft"><span class="chip {{ status }}">{{ status }}</span> {{ name }}, {{ time }}</p>
{% if error %}<div class="error">{{ error }}</div>{% endif %}
<div class="notebook">
{{ body }}
</div>
</main>
</body>
</html>
"""
)


def render(template: str, **values: object) -> str:
    """Fill a template; every value is escaped unless it is `markupsafe.Markup`.

    Args:
        template: `INDEX` or `PAGE`.
        **values: What the template names; a missing one is an error.

    Returns:
        The page.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    style = STYLE if template is INDEX else STYLE + NOTEBOOK_STYLE
    return environment.from_string(template).render(style=Markup(style), **values)
