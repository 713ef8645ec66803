"""The history of the SQL tables, run by `nonet.stores.sql.database.upgrade`."""
