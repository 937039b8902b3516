"""Earlier names, until every import is changed: `endoscope.report.page` and `endoscope.report.selection` own them."""

from endoscope.report.page import export
from endoscope.report.page import page_html as made_page
from endoscope.report.selection import Selection as Wanted

__all__ = ["Wanted", "export", "made_page"]
