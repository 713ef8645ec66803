"""What alembic runs around the migrations, on the connection that it is given."""

from alembic import context

_given = context.config.attributes
context.configure(connection=_given["connection"], version_table=_given["version_table"])
with context.begin_transaction():
    context.run_migrations()
