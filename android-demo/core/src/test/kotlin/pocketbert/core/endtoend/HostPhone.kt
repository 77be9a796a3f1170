package pocketbert.core.endtoend

import pocketbert.core.benchmark.Machine
import pocketbert.core.benchmark.Moment
import pocketbert.core.benchmark.Phone
import java.io.File
import java.lang.management.ManagementFactory
import java.lang.management.OperatingSystemMXBean

/** The machine that runs the tests, as a phone. A test says how warm it is, and leaves it, since nobody does so for a test. */
class HostPhone(private val temperatures: List<Double>, private val thermals: List<String> = emptyList()) : Phone {
    private val system: OperatingSystemMXBean = ManagementFactory.getOperatingSystemMXBean()
    private var asked = 0

    /** What each moment says of power saving; null from the end of the list on. */
    val lowPower = ArrayDeque<Boolean>()

    /** What each moment says of the battery's charge, while nothing charges it; null from the end of the list on. */
    val batteries = ArrayDeque<Double>()

    /** The number of the look at which the app is not in front. */
    var leftAt: Int? = null

    // The look before the run is no part of it.
    private var looks = -1
    override val thermalStates = listOf("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")
    override val source = "host"
    override val machine = Machine(
        platform = System.getProperty("os.name").lowercase(),
        modelId = status("/proc/cpuinfo", "model name") ?: System.getProperty("os.arch"),
        soc = null,
        os = "${System.getProperty("os.name")} ${System.getProperty("os.version")}",
        osBuild = null,
        ramBytes = Runtime.getRuntime().maxMemory(),
        cores = system.availableProcessors,
        abi = System.getProperty("os.arch"),
        pageSize = 4096,
        coreMaxMhz = null,
        cpuFeatures = emptyList(),
    )
    override val versions = mapOf("pocketbert-core" to "0.1.0", "java" to System.getProperty("java.version"))
    override val processToReadyMs = System.currentTimeMillis() - ManagementFactory.getRuntimeMXBean().startTime.toDouble()
    override val memoryKind = "rss"

    override var cpuStepMs = 0.0

    override fun moment() = Moment(
        thermal = thermals.getOrNull(asked) ?: thermals.lastOrNull(),
        temperatureC = temperatures.getOrNull(asked++) ?: temperatures.lastOrNull(),
        batteryFraction = batteries.removeFirstOrNull(),
        lowPower = lowPower.removeFirstOrNull(),
        loadAverage = system.systemLoadAverage.takeIf { it >= 0 },
    )

    override fun isInFront() = looks++ != leftAt

    override fun residentBytes() = kilobytes("VmRSS") ?: heap()

    override fun peakBytes() = kilobytes("VmHWM") ?: heap()

    override fun proportionalBytes() = status("/proc/self/smaps_rollup", "Pss:")?.removeSuffix(" kB")?.trim()?.toLong()?.times(1024)

    override fun cpuMs() = (system as? com.sun.management.OperatingSystemMXBean)?.processCpuTime?.let { it / 1e6 }

    private fun heap() = ManagementFactory.getMemoryMXBean().heapMemoryUsage.used

    private fun kilobytes(key: String) = status("/proc/self/status", key)?.removeSuffix(" kB")?.trim()?.toLong()?.times(1024)

    private fun status(file: String, key: String) = File(file).takeIf { it.exists() }?.useLines { lines ->
        lines.firstOrNull { it.startsWith(key) }?.substringAfter(':')?.trim()
    }
}
