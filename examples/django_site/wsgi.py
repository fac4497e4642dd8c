"""The site for a server of WSGI."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_site.settings")
application = get_wsgi_application()
