"""Where the views are."""

from django.urls import path

from . import views

urlpatterns = [
    path("", views.home),
    path("api/report", views.report),
    path("api/search", views.search),
]
