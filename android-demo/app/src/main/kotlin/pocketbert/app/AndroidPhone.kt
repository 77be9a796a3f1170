package pocketbert.app

import android.app.Activity
import android.app.ActivityManager
import android.app.Application
import android.content.Context
import android.content.Intent
import android.content.IntentFilter
import android.os.BatteryManager
import android.os.Build
import android.os.Bundle
import android.os.Debug
import android.os.PowerManager
import android.os.Process
import android.os.SystemClock
import android.system.Os
import android.system.OsConstants
import pocketbert.app.runners.ExecuTorch
import pocketbert.app.runners.LiteRt
import pocketbert.core.benchmark.Machine
import pocketbert.core.benchmark.Moment
import pocketbert.core.benchmark.Phone
import java.io.File

/** What Android tells an app of its phone without a permission; null for the rest. */
class AndroidPhone(private val context: Context) : Phone {
    private val front = Front(context)
    override val source = if (isEmulator()) "simulator" else "device"
    override val machine = Machine(
        platform = "android",
        modelId = "${Build.MANUFACTURER} ${Build.MODEL}",
        soc = if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.S) Build.SOC_MODEL.takeUnless { it == Build.UNKNOWN } else null,
        os = Build.VERSION.RELEASE,
        osBuild = Build.ID,
        ramBytes = ActivityManager.MemoryInfo().also { context.getSystemService(ActivityManager::class.java).getMemoryInfo(it) }.totalMem,
        cores = Runtime.getRuntime().availableProcessors(),
        abi = Build.SUPPORTED_ABIS.firstOrNull().orEmpty(),
        pageSize = Os.sysconf(OsConstants._SC_PAGESIZE).toInt(),
        coreMaxMhz = clocks("cpuinfo_max_freq"),
        cpuFeatures = File("/proc/cpuinfo").lines { it.startsWith("Features") }?.substringAfter(':')?.trim()?.split(' ').orEmpty(),
    )
    override val versions = mapOf(
        "app" to context.packageManager.getPackageInfo(context.packageName, 0).versionName.orEmpty(),
        "build" to if (isDebug(context)) "debug" else "release",
        "LiteRT" to LiteRt.VERSION,
        "ExecuTorch" to ExecuTorch.VERSION,
    )

    // Read when the app makes its phone, which is the last thing before it can take a request.
    override val processToReadyMs = (SystemClock.elapsedRealtime() - Process.getStartElapsedRealtime()).toDouble()
    override val memoryKind = "rss"

    override val thermalStates = THERMAL

    /** [Process.getElapsedCpuTime] counts whole milliseconds, and no call of Android gives a process's nanoseconds. */
    override val cpuStepMs = 1.0

    override fun isInFront() = front.stayed()

    override fun moment(): Moment {
        val power = context.getSystemService(PowerManager::class.java)
        val battery = context.registerReceiver(null, IntentFilter(Intent.ACTION_BATTERY_CHANGED))
        val level = battery?.getIntExtra(BatteryManager.EXTRA_LEVEL, -1) ?: -1
        val scale = battery?.getIntExtra(BatteryManager.EXTRA_SCALE, -1) ?: -1
        val tenths = battery?.getIntExtra(BatteryManager.EXTRA_TEMPERATURE, Int.MIN_VALUE) ?: Int.MIN_VALUE
        val charge = context.getSystemService(BatteryManager::class.java).getLongProperty(BatteryManager.BATTERY_PROPERTY_CHARGE_COUNTER)
        return Moment(
            thermal = if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.Q) THERMAL.getOrNull(power.currentThermalStatus) else null,
            temperatureC = if (tenths > Int.MIN_VALUE) tenths / TENTHS else null,
            clocksMhz = clocks("scaling_cur_freq"),
            batteryFraction = if (level >= 0 && scale > 0) level.toDouble() / scale else null,
            // What a phone does not count is the least number, or zero.
            batteryChargeUah = charge.takeIf { it > 0 },
            charging = battery?.getIntExtra(BatteryManager.EXTRA_PLUGGED, 0)?.let { it != 0 },
            lowPower = power.isPowerSaveMode,
            batteryMillivolts = battery?.getIntExtra(BatteryManager.EXTRA_VOLTAGE, -1)?.takeIf { it > 0 },
            governors = ofCores("scaling_governor") { it },
            coresAllowed = File("/proc/self/status").lines { it.startsWith("Cpus_allowed_list") }?.substringAfter(':')?.let(::numbers),
        )
    }

    override fun residentBytes() = ofProcess("VmRSS")

    override fun peakBytes() = ofProcess("VmHWM")

    override fun proportionalBytes(): Long? = Debug.getPss().takeIf { it > 0 }?.times(KB)

    override fun cpuMs() = Process.getElapsedCpuTime().toDouble()

    private fun ofProcess(key: String): Long? =
        File("/proc/self/status").lines { it.startsWith(key) }?.substringAfter(':')?.removeSuffix("kB")?.trim()?.toLongOrNull()?.times(KB)

    /** Returns a clock of each core in MHz; null where the phone hides one. */
    private fun clocks(file: String): List<Int>? = ofCores(file) { it.toIntOrNull()?.div(KHZ_IN_MHZ) }

    /** Returns what a file of each core's clock says; null where the phone hides one. */
    private fun <T : Any> ofCores(file: String, read: (String) -> T?): List<T>? {
        val all = (0 until Runtime.getRuntime().availableProcessors()).map { core ->
            File("/sys/devices/system/cpu/cpu$core/cpufreq/$file").lines { true }?.trim()?.let(read)
        }
        return all.filterNotNull().takeIf { it.size == all.size }
    }

    /** Reads a list of the kernel's, such as `0-3,6`. */
    private fun numbers(list: String): List<Int>? = runCatching {
        list.trim().split(',').flatMap { part -> part.split('-').map(String::toInt).let { it.first()..it.last() } }
    }.getOrNull()

    /** Returns the first line that is wanted; null where the file cannot be read. */
    private fun File.lines(wanted: (String) -> Boolean): String? = runCatching { useLines { it.firstOrNull(wanted) } }.getOrNull()

    companion object {
        private const val TENTHS = 10.0
        private const val KB = 1024L
        private const val KHZ_IN_MHZ = 1000

        /** By the numbers of PowerManager's THERMAL_STATUS. */
        private val THERMAL = listOf("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")

        fun isDebug(context: Context) = context.applicationInfo.flags and android.content.pm.ApplicationInfo.FLAG_DEBUGGABLE != 0

        private fun isEmulator() = Build.HARDWARE in setOf("ranchu", "goldfish") || Build.FINGERPRINT.startsWith("generic")
    }
}

/** Whether the app is in front, kept up to date by its activities: asking the system between two runs would disturb both. */
private class Front(context: Context) : Application.ActivityLifecycleCallbacks {
    // The first activity may have been made already; the system knows.
    @Volatile
    var isInFront = ActivityManager.RunningAppProcessInfo().also(ActivityManager::getMyMemoryState).importance <=
        ActivityManager.RunningAppProcessInfo.IMPORTANCE_FOREGROUND
        private set
    private val started = HashSet<Activity>()

    // One that left and came back between two looks has left.
    @Volatile
    private var left = false

    /** Whether the app is in front, and was so since the last look. */
    fun stayed(): Boolean {
        val hasLeft = left
        left = false
        return isInFront && !hasLeft
    }

    init {
        (context.applicationContext as Application).registerActivityLifecycleCallbacks(this)
    }

    override fun onActivityCreated(activity: Activity, savedInstanceState: Bundle?) = Unit

    override fun onActivityStarted(activity: Activity) {
        started.add(activity)
        isInFront = true
    }

    override fun onActivityResumed(activity: Activity) = Unit

    override fun onActivityPaused(activity: Activity) = Unit

    override fun onActivityStopped(activity: Activity) {
        started.remove(activity)
        // A phone that is turned stops the activity, and starts another one.
        if (started.isEmpty() && !activity.isChangingConfigurations) {
            isInFront = false
            left = true
        }
    }

    override fun onActivitySaveInstanceState(activity: Activity, outState: Bundle) = Unit

    override fun onActivityDestroyed(activity: Activity) = Unit
}
