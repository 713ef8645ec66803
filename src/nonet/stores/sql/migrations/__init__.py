"""The history of the SQL tables, applied by `nonet.stores.sql.database.upgrade`."""
