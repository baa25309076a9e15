"""The PySpark door: durable segments as a data source, ``spark.read.format("headrace")``, and the demo's job.

`source` is the data source, `decode` turns slices of segments into Arrow, `kernel` is its hot loop and `plain` its slow
twin; `java` and `session` start Spark where pip is all there is. Never touches a broker or a deciding core.
"""
