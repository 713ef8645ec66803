"""What the tasks read and write."""

from django.db import models


class Invoice(models.Model):
    """One invoice."""

    number = models.IntegerField(unique=True)
    sent = models.BooleanField(default=False)
